package org.omnidraft.engine.learning

import java.io.IOException
import java.nio.file.FileSystemException
import java.nio.file.Files
import java.nio.file.Path
import java.nio.file.attribute.PosixFilePermissions
import kotlin.io.path.isDirectory
import kotlin.io.path.isRegularFile
import kotlin.io.path.name
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.files.Disk
import org.omnidraft.engine.files.SystemDisk
import org.omnidraft.engine.files.readBounded
import org.omnidraft.engine.files.reading
import org.omnidraft.engine.files.replace

private const val SUFFIX = ".adapter"
private const val LARGEST_ADAPTER = 500_000_000L
private val validName = Regex("[a-z0-9][a-z0-9._-]{0,63}")

/**
 * Adapters' files by name in a folder that one process uses.
 *
 * Whenever a save is broken off, by a kill or a loss of power, the file is the old one or the new
 * one, whole. Once [save] has returned it is the new one.
 *
 * @param folder made at the first save, for its user alone: what was learned from prompts tells about
 *   them. What a save that was broken off left in it is removed now.
 */
class AdapterFolder internal constructor(private val folder: Path, private val disk: Disk) {
    constructor(folder: Path) : this(folder, SystemDisk)

    init {
        // A folder that cannot be written can still be read.
        try {
            if (folder.isDirectory()) {
                Files.newDirectoryStream(folder, ".*$SUFFIX.tmp").use { it.forEach(disk::delete) }
            }
        } catch (_: IOException) {
        }
    }

    /**
     * Where an adapter of this name is kept.
     *
     * @throws OmniDraftException it cannot name an adapter.
     */
    fun file(name: String): Path {
        if (!validName.matches(name)) {
            throw OmniDraftException(
                "'${name.take(80)}' cannot name an adapter. Use up to 64 lower-case letters, digits, " +
                    "dots, hyphens and underscores, a letter or digit first."
            )
        }
        return folder.resolve(name + SUFFIX)
    }

    /**
     * The content of an adapter's file; null where there is none.
     *
     * @throws DamagedFileException it is too large for one.
     * @throws OmniDraftException it cannot be read, or the name cannot be used.
     */
    fun read(name: String): ByteArray? {
        val file = file(name)
        if (!file.isRegularFile()) return null
        return reading(file) { readBounded(file, LARGEST_ADAPTER) }
    }

    /**
     * Keep an adapter's file, in the place of one of the same name.
     *
     * @throws OmniDraftException it cannot be written; what was there stays.
     */
    fun save(name: String, content: ByteArray) {
        val file = file(name)
        try {
            if (!folder.isDirectory()) {
                val own = PosixFilePermissions.fromString("rwx------")
                Files.createDirectories(folder, PosixFilePermissions.asFileAttribute(own))
            }
            disk.replace(file, file.resolveSibling(".${file.name}.tmp"), content)
        } catch (error: IOException) {
            val reason = (error as? FileSystemException)?.reason ?: error.message ?: error.toString()
            throw OmniDraftException(
                "The adapter '$name' cannot be saved in $folder: $reason. What was there stays as it " +
                    "was. Free space, or choose another folder.",
                error,
            )
        }
    }
}
