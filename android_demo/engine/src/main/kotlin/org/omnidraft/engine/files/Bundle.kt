package org.omnidraft.engine.files

import java.nio.file.Files
import java.nio.file.Path
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.OmniDraftException

/** The file that says what an exported drafter's folder holds. */
const val BUNDLE_FILE = "omnidraft.json"

private const val SCHEMA_VERSION = 2
private const val OWN_LAYOUT = "omnidraft"
private const val AGAIN = "Export the bundle again, or copy its folder again."

/** The shape of a Llama decoder; [contextLength] is the longest sequence, in tokens. */
@Serializable
data class Geometry(
    val layers: Int,
    @SerialName("hidden_size") val hiddenSize: Int,
    @SerialName("feed_forward_size") val feedForwardSize: Int,
    val heads: Int,
    @SerialName("kv_heads") val kvHeads: Int,
    @SerialName("head_size") val headSize: Int,
    @SerialName("vocab_size") val vocabSize: Int,
    @SerialName("context_length") val contextLength: Int,
)

/** An input or output of a graph. Of [shape] a number is a size, a name an open one. */
@Serializable
data class Tensor(val name: String, val dtype: String, val shape: JsonArray) {
    /** The sizes, −1 for an open one. */
    val sizes: List<Long> get() = shape.map { it.jsonPrimitive.content.toLongOrNull() ?: -1 }
}

/**
 * One graph of a bundle.
 *
 * @property role `decoder` for every graph that scores tokens, `training` for a training step.
 * @property tokens how many tokens a pass of a static graph takes, null where it is dynamic.
 */
@Serializable
data class Graph(
    val role: String,
    val file: String,
    val tokens: Int? = null,
    val inputs: List<Tensor>,
    val outputs: List<Tensor>,
)

/** LoRA inputs of the graphs; [rank] is the proposed one. */
@Serializable
data class LoraInputs(val rank: Int, val linears: List<String>)

/** The chip a bundle was compiled for; [sharedWeights]: its graphs have their weights together. */
@Serializable
data class Soc(
    val name: String,
    @SerialName("model_id") val modelId: Int,
    @SerialName("htp_architecture") val htpArchitecture: String,
    @SerialName("shared_weights") val sharedWeights: Boolean = false,
)

/**
 * A drafter exported for one backend: what `omnidraft export` wrote.
 *
 * Fields that this program has no use for are not read; the digest covers them.
 *
 * @property backend `onnx`, `qnn`, `executorch`, `transformers` or `gguf`.
 * @property layout whose names its inputs and outputs have: `omnidraft`, ours, or another program's.
 * @property soc the chip it was compiled for; null: it was compiled for none.
 * @property lora null: its graphs take no LoRA.
 * @property maxThreads see [Manifest.maxThreads].
 * @property sourceSha256 of the checkpoint that it was exported from.
 * @property files every other file of the folder, by relative POSIX path.
 */
@Serializable
data class Bundle(
    val name: String,
    val backend: String,
    val layout: String = OWN_LAYOUT,
    val quantization: String,
    val geometry: Geometry,
    val soc: Soc? = null,
    val lora: LoraInputs? = null,
    @SerialName("max_threads") val maxThreads: Int? = null,
    val graphs: List<Graph>,
    @SerialName("source_sha256") val sourceSha256: String,
    val files: Map<String, FileEntry>,
) {
    /** The graphs that score tokens. */
    val decoders: List<Graph> get() = graphs.filter { it.role == "decoder" }

    /** Bytes of all files but the manifest. */
    val size: Long get() = files.values.sumOf { it.size }

    /**
     * Refuse a bundle that this device does not run.
     *
     * @param backend what is to run it.
     * @param abi the device's, such as `arm64-v8a`.
     * @param chip what the device calls its chip, such as `SM8650`; null: it does not say.
     * @throws OmniDraftException it was exported for another backend, program or chip, or for a chip
     *   of another kind of processor.
     */
    fun checkRuns(backend: String, abi: String? = null, chip: String? = null) {
        if (this.backend != backend) {
            throw OmniDraftException(
                "The bundle $name was exported for the backend ${this.backend}, and this program " +
                    "runs it by $backend. Export it again with --backend $backend."
            )
        }
        if (layout != OWN_LAYOUT) {
            throw OmniDraftException(
                "The bundle $name was exported for other programs (--layout ${layout.take(60)}). Export it " +
                    "again without --layout."
            )
        }
        if (soc == null) return
        if (abi != null && abi != QNN_ABI) {
            throw OmniDraftException(
                "The bundle $name was compiled for the chip ${soc.name}, whose programs are " +
                    "$QNN_ABI, and this device's are $abi. Export it again with --backend onnx."
            )
        }
        if (chip != null && !chip.equals(soc.name, ignoreCase = true)) {
            throw OmniDraftException(
                "The bundle $name was compiled for the chip ${soc.name}, and this device has " +
                    "$chip. Export it again with --soc $chip."
            )
        }
    }

    /**
     * Compare the folder's files with the manifest.
     *
     * @param checksums compare every file's sha256, not only its size.
     * @throws DamagedFileException a file is missing or differs.
     */
    fun verify(folder: Path, checksums: Boolean = true, progress: Progress = Progress { _, _ -> }) =
        checkFiles(folder, files, checksums, AGAIN, progress)

    private fun check() {
        val sizes = geometry.run {
            listOf(layers, hiddenSize, feedForwardSize, heads, kvHeads, headSize, vocabSize, contextLength)
        }
        require(sizes.all { it >= 1 }) { "geometry holds a size below 1" }
        require((maxThreads ?: 1) >= 1) { "max_threads is $maxThreads" }
        require(backend in BACKENDS) { "backend is '${backend.take(60)}'" }
        require(decoders.isNotEmpty()) { "it has no graph that scores tokens" }
        val unlisted = graphs.map { it.file } - files.keys
        require(unlisted.isEmpty()) {
            "it names graphs that it lists no checksum for: ${unlisted.sorted().joinToString()}"
        }
    }

    companion object {
        private val BACKENDS = setOf("onnx", "qnn", "executorch", "transformers", "gguf")
        private const val QNN_ABI = "arm64-v8a"
        private val json = Json { ignoreUnknownKeys = true }

        /**
         * Read a bundle's manifest; its files are left for [verify].
         *
         * @throws ModelNotFoundException the folder has none.
         * @throws DamagedFileException it is damaged or was edited, or is of another version.
         * @throws OmniDraftException it cannot be read.
         */
        fun load(folder: Path): Bundle {
            val path = folder.resolve(BUNDLE_FILE)
            if (!Files.isRegularFile(path)) {
                val problem = if (Files.exists(folder)) "is no bundle: it has no $BUNDLE_FILE"
                else "does not exist"
                throw ModelNotFoundException(
                    "$folder $problem. Copy a folder here that `omnidraft export` wrote."
                )
            }
            return parse(reading(path) { readBounded(path, LARGEST_JSON) }, path)
        }

        private fun parse(content: ByteArray, path: Path): Bundle {
            val values = try {
                json.parseObject(content)
            } catch (error: SerializationException) {
                throw DamagedFileException(
                    "$path is not JSON: ${error.message?.lineSequence()?.first()?.take(300)}. $AGAIN",
                    error,
                )
            }
            val version = (values?.get("schema_version"))?.toString()
            if (values == null || version != SCHEMA_VERSION.toString()) {
                throw DamagedFileException(
                    "$path has schema version ${version?.take(60)}, this program reads " +
                        "$SCHEMA_VERSION. Update this program if the bundle is newer, export it " +
                        "again if it is older."
                )
            }
            try {
                val bundle = json.decodeFromJsonElement(serializer(), values).also { it.check() }
                val digest = sha256(canonicalJson(JsonObject(values - "digest")).encodeToByteArray())
                if (values["digest"]?.jsonPrimitive?.content != digest) {
                    throw DamagedFileException(
                        "$path was edited since it was written (its digest differs). $AGAIN"
                    )
                }
                return bundle
            } catch (error: IllegalArgumentException) { // of which SerializationException is one
                throw DamagedFileException(
                    "$path is damaged: ${error.message?.lineSequence()?.first()?.take(300)}. $AGAIN",
                    error,
                )
            }
        }
    }
}
