package org.omnidraft.demo.models

import java.io.ByteArrayOutputStream
import java.io.File
import java.io.IOException
import java.io.InputStream
import java.security.MessageDigest

/** Folders of models, by name; null: there is none of this name. */
fun interface ModelFolders {
    fun folder(name: String): File?
}

/** A model in the app's storage. [size] counts the bytes of its files. */
data class StoredModel(val name: String, val kind: Kind, val size: Long)

/**
 * The models in a folder of the app's storage.
 *
 * A model is there whole or not at all: it is copied and verified under a name with a dot, then
 * renamed.
 */
class ModelStore(private val root: File) : ModelFolders {
    override fun folder(name: String): File? =
        File(root, name).takeIf { !name.startsWith(".") && kindOf(it) != null }

    /** What is there, by name. */
    fun list(): List<StoredModel> = folders()
        .filterNot { it.name.startsWith(".") }
        .mapNotNull { folder ->
            val kind = kindOf(folder) ?: return@mapNotNull null
            val size = folder.walk().filter { it.isFile }.sumOf { it.length() }
            StoredModel(folder.name, kind, size)
        }
        .sortedBy { it.name }

    /** Removes what was left half copied or half deleted. Returns the names of half copied models. */
    fun cleanUp(): List<String> {
        val left = folders().filter { it.name.startsWith(".") }
        left.forEach { it.deleteRecursively() }
        return left.map { it.name }
            .filter { it.startsWith(IMPORTING) }
            .map { it.removePrefix(IMPORTING) }
            .sorted()
    }

    /** Deletes a model; it is gone for [list] at once. Throws [IOException]. */
    fun delete(name: String) {
        val folder = folder(name) ?: return
        val doomed = File(root, DELETING + name)
        doomed.deleteRecursively()
        if (!folder.renameTo(doomed)) throw IOException("$name cannot be deleted")
        doomed.deleteRecursively()
    }

    /**
     * Copies a model out of [source], compares every file with the manifest, and keeps it if all
     * are right. [progress] gets the bytes copied so far and those of all files; it may throw to
     * end the import, of which nothing is left then.
     *
     * Throws [ImportException].
     */
    fun import(source: Source, progress: (done: Long, total: Long) -> Unit): StoredModel {
        val name = freeName(source.name)
        val temporary = File(root, IMPORTING + name)
        try {
            temporary.deleteRecursively()
            if (!temporary.mkdirs()) throw IOException("$temporary cannot be made")
            val found = findManifest(source)
            checkSpace(found.manifest.size)
            copy(source, found, temporary, progress)
            File(temporary, found.manifest.kind.manifest).writeWhole { it.write(found.content) }
            if (!temporary.renameTo(File(root, name))) throw IOException("$name cannot be renamed")
            return StoredModel(name, found.manifest.kind, found.manifest.size + found.content.size)
        } catch (error: IOException) {
            throw ImportException("${source.name} cannot be copied: ${error.message}.", error)
        } catch (error: SecurityException) {
            throw ImportException("${source.name} cannot be read: ${error.message}.", error)
        } finally {
            temporary.deleteRecursively()
        }
    }

    private class Found(val prefix: String, val manifest: Manifest, val content: ByteArray)

    /** The first manifest in the source, at its top or in a folder there. */
    private fun findManifest(source: Source): Found {
        var found: Found? = null
        source.visit { path, content ->
            val kind = Kind.of(path.substringAfterLast('/'))
            if (kind != null && path.count { it == '/' } <= 1) {
                val bytes = readManifest(kind, content)
                val manifest = Manifest.parse(kind, bytes.decodeToString())
                found = Found(path.removeSuffix(kind.manifest), manifest, bytes)
            }
            found == null
        }
        return found ?: throw ImportException(
            "${source.name} has neither ${Kind.BUNDLE.manifest} nor ${Kind.MODEL.manifest}. Choose " +
                "a folder, or a .zip archive of one, that `omnidraft` has made.",
        )
    }

    private fun readManifest(kind: Kind, content: InputStream): ByteArray {
        val bytes = content.readUpTo(LARGEST_MANIFEST + 1)
        if (bytes.size > LARGEST_MANIFEST) throw ImportException("${kind.manifest} is too large.")
        return bytes
    }

    private fun checkSpace(size: Long) {
        val free = root.usableSpace
        if (free < size + SPARE) {
            throw ImportException(
                "The model takes ${size / MEGABYTE} MB and ${SPARE / MEGABYTE} MB must stay free, " +
                    "but ${free / MEGABYTE} MB are. Free some storage first.",
            )
        }
    }

    private fun copy(
        source: Source,
        found: Found,
        folder: File,
        progress: (done: Long, total: Long) -> Unit,
    ) {
        val files = found.manifest.files
        val missing = files.keys.toMutableSet()
        var done = 0L
        source.visit { path, content ->
            val relative = path.removePrefix(found.prefix)
            val listed = files[relative]
            if (listed != null && path.startsWith(found.prefix) && missing.remove(relative)) {
                copyVerified(relative, listed, content, File(folder, relative)) { bytes ->
                    done += bytes
                    progress(done, found.manifest.size)
                }
            }
            missing.isNotEmpty()
        }
        if (missing.isNotEmpty()) {
            throw ImportException("${source.name} lacks ${missing.sorted().joinToString()}.")
        }
    }

    private fun copyVerified(
        name: String,
        listed: Listed,
        content: InputStream,
        file: File,
        copied: (bytes: Int) -> Unit,
    ) {
        val digest = MessageDigest.getInstance("SHA-256")
        var left = listed.size
        file.parentFile?.mkdirs()
        file.writeWhole { output ->
            val buffer = ByteArray(BUFFER)
            while (true) {
                val bytes = content.read(buffer)
                if (bytes < 0) break
                left -= bytes
                if (left < 0) throw changed(name, "it is longer than ${listed.size} bytes")
                digest.update(buffer, 0, bytes)
                output.write(buffer, 0, bytes)
                copied(bytes)
            }
        }
        if (left > 0) throw changed(name, "$left of its ${listed.size} bytes are missing")
        val sha256 = digest.digest().joinToString("") { "%02x".format(it) }
        if (sha256 != listed.sha256) throw changed(name, "its checksum (sha256) differs")
    }

    private fun changed(name: String, how: String) = ImportException(
        "$name is not what the manifest says: $how. Copy the folder to the phone again.",
    )

    /** A name for a folder that is not taken. */
    private fun freeName(wish: String): String {
        val plain = wish.replace(Regex("[^\\w .()-]"), "_").trim().trimStart('.').take(LONGEST_NAME)
            .ifEmpty { "model" }
        return generateSequence(2) { it + 1 }.map { "$plain ($it)" }
            .let { sequenceOf(plain) + it }
            .first { !File(root, it).exists() }
    }

    private fun kindOf(folder: File) = Kind.entries.find { File(folder, it.manifest).isFile }

    private fun folders() = root.listFiles { file -> file.isDirectory }.orEmpty().toList()

    private companion object {
        const val IMPORTING = ".importing-"
        const val DELETING = ".deleting-"
        const val LARGEST_MANIFEST = 4 shl 20
        const val LONGEST_NAME = 80
        const val BUFFER = 1 shl 18
        const val MEGABYTE = 1_000_000L
        const val SPARE = 100 * MEGABYTE
    }
}

/** At most [most] bytes. (`readNBytes` came with Android 13.) */
private fun InputStream.readUpTo(most: Int): ByteArray {
    val bytes = ByteArrayOutputStream()
    val buffer = ByteArray(1 shl 16)
    while (bytes.size() < most) {
        val count = read(buffer, 0, minOf(buffer.size, most - bytes.size()))
        if (count < 0) break
        bytes.write(buffer, 0, count)
    }
    return bytes.toByteArray()
}
