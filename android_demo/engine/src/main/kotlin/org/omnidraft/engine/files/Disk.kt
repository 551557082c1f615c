package org.omnidraft.engine.files

import java.io.IOException
import java.nio.channels.FileChannel
import java.nio.file.Files
import java.nio.file.Path
import java.nio.file.StandardCopyOption
import java.nio.file.StandardOpenOption

/** What a save asks of a disk, each of which can fail, or be the last before the power goes. */
internal interface Disk {
    /** Write a file anew. Until [flush] it may be lost, or a part of it. */
    fun write(file: Path, content: ByteArray)

    /** Return when what was written to a file outlives a loss of power (fsync). */
    fun flush(file: Path)

    /** Give a file another's name and place, at once. */
    fun rename(from: Path, to: Path)

    /** Return when the names in a folder outlive a loss of power. */
    fun flushNames(folder: Path)

    /** Remove a file if it is there. */
    fun delete(file: Path)
}

internal object SystemDisk : Disk {
    override fun write(file: Path, content: ByteArray) {
        Files.write(file, content)
    }

    override fun flush(file: Path) =
        FileChannel.open(file, StandardOpenOption.WRITE).use { it.force(true) }

    override fun rename(from: Path, to: Path) {
        Files.move(from, to, StandardCopyOption.ATOMIC_MOVE)
    }

    override fun flushNames(folder: Path) =
        FileChannel.open(folder, StandardOpenOption.READ).use { it.force(true) }

    override fun delete(file: Path) {
        Files.deleteIfExists(file)
    }
}

/**
 * Put content in the place of a file, whole: whenever the process ends or the power goes, the file is
 * the old one or the new one.
 *
 * It is written beside the old one under [temporary], flushed, and renamed.
 *
 * @throws IOException nothing was changed; or, of the last flush, it may not outlive a loss of power.
 */
internal fun Disk.replace(file: Path, temporary: Path, content: ByteArray) {
    try {
        write(temporary, content)
        flush(temporary)
        rename(temporary, file)
    } catch (error: IOException) {
        try {
            delete(temporary)
        } catch (also: IOException) {
            error.addSuppressed(also)
        }
        throw error
    }
    flushNames(file.parent)
}
