package org.omnidraft.engine.files

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.FileAlreadyExistsException
import java.nio.file.Files
import java.nio.file.Path
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.StandardCopyOption.REPLACE_EXISTING
import java.nio.file.StandardOpenOption.CREATE
import java.nio.file.StandardOpenOption.READ
import java.nio.file.StandardOpenOption.TRUNCATE_EXISTING
import java.nio.file.StandardOpenOption.WRITE
import org.omnidraft.engine.OmniDraftException

/** The name under which a file is written before it takes its place: `.{name}.tmp`. */
internal fun temporaryName(path: Path): Path = path.resolveSibling(".${path.fileName}.tmp")

/**
 * Write a file whole or not at all.
 *
 * It is written beside [path] and flushed; then it is renamed over what is there, and the folder is
 * flushed. Whenever the process is killed, the old file is there or the new one, whole.
 *
 * @param content its remaining bytes.
 * @throws OmniDraftException the file cannot be written; what was there stays as it was.
 */
internal fun replaceFile(path: Path, content: ByteBuffer) {
    val temporary = temporaryName(path)
    try {
        try {
            FileChannel.open(temporary, CREATE, WRITE, TRUNCATE_EXISTING).use { channel ->
                while (content.hasRemaining()) channel.write(content)
                channel.force(true)
            }
            Files.move(temporary, path, ATOMIC_MOVE, REPLACE_EXISTING)
        } catch (error: Throwable) {
            Files.deleteIfExists(temporary)
            throw error
        }
    } catch (error: IOException) {
        throw OmniDraftException(
            "$path cannot be written: ${error.message}. What was there stays as it was. Free space, or " +
                "choose another place.",
            error,
        )
    }
    flushFolder(path.toAbsolutePath().parent)
}

/**
 * Make a folder, and those that it lies in, where they are not there yet.
 *
 * @throws OmniDraftException it cannot be made.
 */
internal fun makeFolder(folder: Path) {
    try {
        Files.createDirectories(folder)
    } catch (error: IOException) {
        val reason = if (error is FileAlreadyExistsException) "a file has that name" else error.message
        throw OmniDraftException(
            "The folder $folder cannot be made: $reason. Free space, or choose another place.",
            error,
        )
    }
}

/** Make what was renamed or removed in a folder outlive a loss of power, where the system can. */
internal fun flushFolder(folder: Path) {
    try {
        FileChannel.open(folder, READ).use { it.force(true) }
    } catch (_: IOException) {
        // Not every system opens folders; a file that was renamed is whole all the same.
    }
}
