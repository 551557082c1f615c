package org.omnidraft.demo.models

import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long

/** What a folder of a model is: an exported drafter, or a converted model. */
enum class Kind(val manifest: String) {
    BUNDLE("omnidraft.json"),
    MODEL("omnidraft-model.json");

    companion object {
        fun of(manifest: String): Kind? = entries.find { it.manifest == manifest }
    }
}

/** A file that a manifest lists: its size in bytes, and its sha256 in hexadecimal. */
data class Listed(val size: Long, val sha256: String)

/** The files of a model's folder beside the manifest itself, by relative path. */
class Manifest(val kind: Kind, val files: Map<String, Listed>) {
    /** Bytes of all files. */
    val size: Long = files.values.sumOf { it.size }

    companion object {
        /**
         * Reads a manifest's list of files, and nothing else of it: the rest is for who opens it.
         *
         * Throws [ImportException] where it has no such list.
         */
        fun parse(kind: Kind, content: String): Manifest {
            val files = try {
                val list = Json.parseToJsonElement(content).jsonObject.getValue("files").jsonObject
                list.mapValues { (_, entry) -> listed(entry.jsonObject) }
            } catch (error: SerializationException) {
                throw damaged(kind, error)
            } catch (error: IllegalArgumentException) {
                throw damaged(kind, error)
            } catch (error: NoSuchElementException) {
                throw damaged(kind, error)
            } catch (error: StackOverflowError) { // lists in lists in lists
                throw damaged(kind, error)
            }
            val strange = files.keys.find { !isPlain(it) }
            if (strange != null) throw ImportException("${kind.manifest} names the file \"$strange\".")
            if (files.isEmpty()) throw ImportException("${kind.manifest} names no files.")
            return Manifest(kind, files)
        }

        private fun listed(entry: JsonObject): Listed {
            val size = entry.getValue("size").jsonPrimitive.long
            require(size in 0..LARGEST_FILE) { "a size is $size" }
            return Listed(size, entry.getValue("sha256").jsonPrimitive.content)
        }

        private fun damaged(kind: Kind, cause: Throwable) = ImportException(
            "${kind.manifest} is damaged. Copy the folder to the phone again, or make it again.",
            cause,
        )

        /** Bytes, a thousand times those of a phone's models: sums of such sizes are still numbers. */
        private const val LARGEST_FILE = 1L shl 40

        /** Whether a path stays in its folder. */
        private fun isPlain(path: String) = '\\' !in path && '\u0000' !in path &&
            path.split('/').none { it.isEmpty() || it == "." || it == ".." }
    }
}

/** An import that failed; [message] says why and what to do. */
class ImportException(message: String, cause: Throwable? = null) : Exception(message, cause)
