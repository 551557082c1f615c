package org.omnidraft.engine.files

import java.nio.ByteBuffer
import java.nio.file.Files
import java.nio.file.Path
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.OmniDraftException

/** The file that says what a converted model's folder holds. */
const val MANIFEST_FILE = "omnidraft-model.json"

private const val SCHEMA_VERSION = 6
private const val AGAIN = "Convert the model again, or copy its folder again."

/**
 * A converted decoder: what `omnidraft models pull` wrote.
 *
 * @property architecture the family, such as `llama`.
 * @property quantization how the conversion was asked to store the weights.
 * @property contextLength longest sequence that the model was made for, in tokens.
 * @property maxThreads how many threads may share a pass without a row depending on the pass's size;
 *   null: any number.
 * @property sourceSha256 of what it was converted from.
 * @property invariance what was measured of batch invariance, and where; it holds there alone.
 * @property files every other file of the folder, by relative POSIX path.
 * @property weights counts the matrices by how they are held.
 */
@Serializable
data class Manifest(
    val architecture: String,
    val quantization: String,
    val layers: Int,
    @SerialName("hidden_size") val hiddenSize: Int,
    val heads: Int,
    @SerialName("kv_heads") val kvHeads: Int,
    @SerialName("head_size") val headSize: Int,
    @SerialName("vocab_size") val vocabSize: Int,
    @SerialName("context_length") val contextLength: Int,
    @SerialName("feed_forward_size") val feedForwardSize: Int = 0, // 0: an older conversion
    @SerialName("max_threads") val maxThreads: Int?,
    @SerialName("source_sha256") val sourceSha256: String,
    val invariance: JsonObject,
    val files: Map<String, FileEntry>,
    val weights: Map<String, Int> = emptyMap(),
    val loss: Double? = null,
    val extra: JsonObject = JsonObject(emptyMap()),
    @SerialName("schema_version") val schemaVersion: Int,
) {
    /** Bytes of all files but the manifest. */
    val size: Long get() = files.values.sumOf { it.size }

    /**
     * Compare the folder's files with the manifest.
     *
     * @param checksums compare every file's sha256, not only its size.
     * @throws DamagedFileException a file is missing or differs.
     */
    fun verify(folder: Path, checksums: Boolean = true, progress: Progress = Progress { _, _ -> }) =
        checkFiles(folder, files, checksums, AGAIN, progress)

    private fun check() {
        val counts = mapOf(
            "layers" to layers, "hidden_size" to hiddenSize, "heads" to heads,
            "kv_heads" to kvHeads, "head_size" to headSize, "vocab_size" to vocabSize,
            "context_length" to contextLength, "max_threads" to (maxThreads ?: 1),
        )
        for ((name, value) in counts) require(value >= 1) { "$name is $value" }
        require(files.isNotEmpty()) { "it names no files" }
    }

    companion object {
        /**
         * Read a folder's manifest; its files are left for [verify].
         *
         * @throws ModelNotFoundException the folder has none.
         * @throws DamagedFileException it is damaged, or of another version.
         * @throws OmniDraftException it cannot be read.
         */
        fun load(folder: Path): Manifest {
            val path = folder.resolve(MANIFEST_FILE)
            if (!Files.isRegularFile(path)) {
                throw ModelNotFoundException(
                    "$folder holds no converted model ($MANIFEST_FILE). Copy a folder here that " +
                        "`omnidraft models pull` wrote."
                )
            }
            val content = reading(path) { readBounded(path, LARGEST_JSON) }
            try {
                val values = Json.parseObject(content)
                    ?: throw SerializationException("it holds no object")
                checkVersion(path, values["schema_version"]?.jsonPrimitive?.content)
                return Json.decodeFromJsonElement(serializer(), values).also { it.check() }
            } catch (error: IllegalArgumentException) { // of which SerializationException is one
                throw DamagedFileException(
                    "$path is damaged: ${error.message?.lineSequence()?.first()?.take(300)}. $AGAIN",
                    error,
                )
            }
        }

        /**
         * Replace what a folder's manifest says of batch invariance; all else stays as it is.
         *
         * @throws OmniDraftException the manifest cannot be read or written; it stays as it was.
         */
        internal fun keepInvariance(folder: Path, report: JsonObject) {
            load(folder)
            val path = folder.resolve(MANIFEST_FILE)
            val values = reading(path) { Json.parseObject(readBounded(path, LARGEST_JSON))!! }
            val content = writer.encodeToString(JsonObject(values + ("invariance" to report)))
            replaceFile(path, ByteBuffer.wrap((content + "\n").encodeToByteArray()))
        }

        // A difference may be infinite: something was not a number.
        private val writer = Json {
            prettyPrint = true
            allowSpecialFloatingPointValues = true
        }

        private fun checkVersion(path: Path, version: String?) {
            if (version == SCHEMA_VERSION.toString()) return
            throw DamagedFileException(
                "$path has schema version ${version?.take(60)}, this program reads " +
                    "$SCHEMA_VERSION. Update this program if the model is newer, convert the model " +
                    "again if it is older."
            )
        }
    }
}
