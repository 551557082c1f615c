package org.omnidraft.engine.files

import java.nio.file.Files
import java.nio.file.Path
import kotlinx.serialization.Serializable
import org.omnidraft.engine.DamagedFileException

/** A file of a folder: its size in bytes and its sha256 in hexadecimal. */
@Serializable
data class FileEntry(val size: Long, val sha256: String)

/** Told how many bytes of all have been read. */
fun interface Progress {
    fun at(done: Long, total: Long)
}

/**
 * Compare a folder's files with what its manifest tells of them.
 *
 * @param files by relative POSIX path.
 * @param checksums compare every file's sha256, not only its size.
 * @param again what to do about a file that differs.
 * @throws DamagedFileException a file is missing or differs, or a name leads out of the folder.
 */
internal fun checkFiles(
    folder: Path,
    files: Map<String, FileEntry>,
    checksums: Boolean,
    again: String,
    progress: Progress,
) = reading(folder) {
    val places = files.mapKeys { (name, _) -> inside(folder, name) }
    for ((path, entry) in places) { // what is quick first
        if (!Files.isRegularFile(path)) throw DamagedFileException("$path is missing. $again")
        val size = Files.size(path)
        if (size != entry.size) {
            val part = if (size < entry.size) ": it was written or copied only in part" else ""
            throw DamagedFileException("$path has $size bytes, ${entry.size} expected$part. $again")
        }
    }
    if (!checksums) return@reading
    val total = files.values.sumOf { it.size }
    var done = 0L
    progress.at(done, total)
    for ((path, entry) in places) {
        val found = fileSha256(path) { count ->
            done += count
            progress.at(done, total)
        }
        if (found != entry.sha256) {
            throw DamagedFileException("$path fails its checksum (sha256). $again")
        }
    }
}
