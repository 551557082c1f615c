package org.omnidraft.engine.files

import java.io.IOException
import java.nio.file.FileSystemException
import java.nio.file.Files
import java.nio.file.Path
import java.security.MessageDigest
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.OmniDraftException

/** Bytes of a configuration or a manifest; the largest in use are a tenth. */
internal const val LARGEST_JSON = 1L shl 26

/** Bytes of a tokenizer. */
internal const val LARGEST_TOKENIZER = 1L shl 28

/**
 * The boundary behind which files that came from anywhere are read: makes of whatever the system
 * says a sentence that names [what].
 *
 * @throws OmniDraftException the block has said why, or the system refuses.
 */
internal inline fun <T> reading(what: Any, block: () -> T): T = try {
    block()
} catch (error: IOException) {
    val place = (error as? FileSystemException)?.file ?: what
    val reason = (error as? FileSystemException)?.reason ?: error.message ?: error.javaClass.simpleName
    throw OmniDraftException("$place cannot be read: $reason.", error)
} catch (error: OutOfMemoryError) {
    throw OmniDraftException(
        "$what needs more memory than there is. If it is not that large it is damaged: copy it again.",
        error,
    )
}

/**
 * The content of a file that is to be read whole.
 *
 * @throws DamagedFileException it has more than [most] bytes.
 */
internal fun readBounded(path: Path, most: Long): ByteArray {
    val size = Files.size(path)
    if (size > most) {
        throw DamagedFileException(
            "$path has $size bytes, and no such file needs more than $most. Copy it again."
        )
    }
    return Files.readAllBytes(path)
}

/** The object that a JSON text holds; null where it holds something else. */
internal fun Json.parseObject(content: ByteArray): JsonObject? = try {
    parseToJsonElement(content.decodeToString(throwOnInvalidSequence = true)) as? JsonObject
} catch (error: CharacterCodingException) {
    throw SerializationException("it is not UTF-8", error)
} catch (error: StackOverflowError) {
    throw SerializationException("its values lie too deep in one another", error)
}

private val drive = Regex("^[A-Za-z]:")

/**
 * The file of a folder that has a name which its manifest tells.
 *
 * @throws DamagedFileException the name leads out of the folder, on any system, or can be no file's.
 */
internal fun inside(folder: Path, name: String): Path {
    val parts = name.split('/', '\\')
    val leaves = name.isEmpty() || name[0] == '/' || name[0] == '\\' || '\u0000' in name ||
        drive.containsMatchIn(name) || ".." in parts
    if (leaves) {
        throw DamagedFileException(
            "$folder is not what it seems to be: its manifest names a file '${name.take(60)}', " +
                "which does not lie in it. Copy it again."
        )
    }
    return folder.resolve(name)
}

/** A file's sha256 in hexadecimal; [read] is told of every part's bytes. */
internal fun fileSha256(path: Path, read: (Int) -> Unit = {}): String {
    val digest = MessageDigest.getInstance("SHA-256")
    val buffer = ByteArray(1 shl 18)
    Files.newInputStream(path).use { input ->
        while (true) {
            val count = input.read(buffer)
            if (count < 0) break
            digest.update(buffer, 0, count)
            read(count)
        }
    }
    return digest.digest().toHex()
}

internal fun sha256(content: ByteArray): String =
    MessageDigest.getInstance("SHA-256").digest(content).toHex()

internal fun ByteArray.toHex(): String =
    joinToString("") { (it.toInt() and 0xff).toString(16).padStart(2, '0') }
