package org.omnidraft.engine.learning

import java.nio.ByteBuffer
import java.nio.file.Files
import java.nio.file.Path
import java.util.zip.CRC32
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.files.parseObject
import org.omnidraft.engine.files.reading
import org.omnidraft.engine.files.replaceFile
import org.omnidraft.engine.models.LoraWeights
import org.omnidraft.engine.models.Matrix
import org.omnidraft.engine.window

/**
 * An adapter as one file, which OmniDraft's Python reads and writes too.
 *
 * It is a safetensors file. Its header holds the metadata and a CRC-32 of every tensor: it is damage
 * that is to be found, not forgery.
 */
object AdapterFile {
    private const val METADATA = "omnidraft_adapter"
    private const val CHECKSUMS = "crc32"
    private const val HEADER_CHECKSUM = "header_crc32"
    private const val NGRAMS = "ngrams"
    private val LORA_NAME = Regex("lora\\.\\d+\\.\\w+\\.[AB]")
    // Python writes and wants every field.
    private val json = Json { encodeDefaults = true }

    /**
     * Write an adapter, whole or not at all: see [AdapterStore] for what a kill leaves.
     *
     * @throws OmniDraftException the adapter does not hold together, or the file cannot be written.
     */
    fun write(path: Path, adapter: Adapter) = replaceFile(path, content(adapter, adapter.metadata))

    /** The file of an adapter, with other metadata. */
    internal fun content(adapter: Adapter, metadata: AdapterMetadata): ByteBuffer {
        mistake(adapter)?.let { throw OmniDraftException("The adapter does not hold together: $it.") }
        val tensors = LinkedHashMap<String, NumberArray>()
        for ((name, it) in adapter.lora) tensors[name] = NumberArray.of(it.values, it.rows, it.columns)
        for ((name, array) in adapter.head) tensors["head.$name"] = array
        for ((name, array) in adapter.optimizer) tensors["optimizer.$name"] = array
        if (adapter.ngrams.isNotEmpty()) tensors[NGRAMS] = NumberArray.of(adapter.ngrams)
        val text = json.encodeToString(metadata.copy(rank = adapter.rank))
        val sums = JsonObject(tensors.mapValues { (name, it) -> JsonPrimitive(checksum(name, it)) }).toString()
        return safetensors(tensors, mapOf(METADATA to text, CHECKSUMS to sums, HEADER_CHECKSUM to crc(text + sums)))
    }

    /**
     * Read a file that [write] or Python made, and compare every tensor with its checksum.
     *
     * @param optimizer read the optimizer's state too. Saving what was read without it would lose it.
     * @throws ModelNotFoundException there is no such file.
     * @throws DamagedFileException it is damaged, or no adapter.
     * @throws OmniDraftException a newer version wrote it, or it cannot be read.
     */
    fun read(path: Path, optimizer: Boolean = true): Adapter = opened(path) { file, metadata, checksums ->
        val lora = HashMap<String, Matrix>()
        val head = HashMap<String, NumberArray>()
        val state = HashMap<String, NumberArray>()
        var ngrams = ByteArray(0)
        for ((name, expected) in checksums) {
            val part = name.substringBefore('.')
            if (part == "optimizer" && !optimizer) continue
            val array = file.read(name)
            if (checksum(name, array) != expected) throw damaged(path, "$name fails its checksum")
            when {
                name == NGRAMS -> ngrams = ByteArray(array.bytes.limit()).also { array.bytes.duplicate().get(it) }
                part == "lora" -> lora[name] = matrix(path, name, array)
                part == "head" -> head[name.substringAfter('.')] = array
                part == "optimizer" -> state[name.substringAfter('.')] = array
                else -> throw damaged(path, "it holds a tensor '$name'")
            }
        }
        Adapter(metadata, lora, ngrams, head, state)
            .also { adapter -> mistake(adapter)?.let { throw damaged(path, it) } }
    }

    /**
     * Read whose an adapter is, and leave its tensors.
     *
     * @throws OmniDraftException see [read].
     */
    fun readMetadata(path: Path): AdapterMetadata = opened(path) { _, metadata, _ -> metadata }

    private fun <T> opened(path: Path, block: (SafetensorsFile, AdapterMetadata, Map<String, Long>) -> T): T {
        if (!Files.isRegularFile(path)) throw ModelNotFoundException("There is no adapter $path.")
        return reading(path) {
            try {
                SafetensorsFile(path).use { file ->
                    val (metadata, checksums) = header(path, file.metadata)
                    if (file.names != checksums.keys) {
                        throw damaged(path, "its list of tensors is not the one that was written")
                    }
                    block(file, metadata, checksums)
                }
            } catch (error: IllegalArgumentException) { // of which SerializationException is one
                throw damaged(path, error.message.orEmpty().lineSequence().first().take(300), error)
            }
        }
    }

    private fun header(path: Path, header: Map<String, String>): Pair<AdapterMetadata, Map<String, Long>> {
        val text = header[METADATA]
        val sums = header[CHECKSUMS]
        if (text == null || sums == null) throw DamagedFileException("$path is no adapter of omnidraft.")
        if (header[HEADER_CHECKSUM] != crc(text + sums)) throw damaged(path, "its metadata fail their checksum")
        val values = Json.parseObject(text.encodeToByteArray())
            ?: throw SerializationException("its metadata are no object")
        val version = values["schema_version"]?.jsonPrimitive?.long ?: 0
        if (version > ADAPTER_SCHEMA_VERSION) {
            throw OmniDraftException(
                "$path was written by a newer omnidraft (schema version $version, this one reads " +
                    "$ADAPTER_SCHEMA_VERSION). Update this program."
            )
        }
        val metadata = Json.decodeFromJsonElement(AdapterMetadata.serializer(), values).also { it.check() }
        return metadata to Json.decodeFromString<Map<String, Long>>(sums)
    }

    private fun matrix(path: Path, name: String, array: NumberArray): Matrix {
        if (array.dtype != "F32" || array.shape.size != 2) {
            throw damaged(path, "$name is ${array.dtype} ${array.shape}, a float32 matrix is expected")
        }
        return Matrix(array.shape[0], array.shape[1], array.floats())
    }

    /** Why an adapter's LoRA does not hold together; null where it does. */
    private fun mistake(adapter: Adapter): String? = mistake(adapter.lora, adapter.rank)

    private fun mistake(lora: LoraWeights, rank: Int): String? {
        for ((name, matrix) in lora) {
            if (!LORA_NAME.matches(name)) return "'$name' names no LoRA input: lora.LAYER.LINEAR.A or .B does"
            val isA = name.endsWith("A")
            if (name.dropLast(1) + (if (isA) "B" else "A") !in lora) return "it has $name without its other half"
            val own = if (isA) matrix.columns else matrix.rows
            if (own != rank) return "$name has rank $own, other inputs have $rank"
            if (!matrix.values.all(Float::isFinite)) return "$name holds values that are not finite: learning diverged"
        }
        return null
    }

    /** CRC-32 of a tensor with its name, dtype and shape, which a header might get wrong. */
    private fun checksum(name: String, array: NumberArray): Long {
        val shape = array.shape.joinToString(", ", "(", if (array.shape.size == 1) ",)" else ")")
        val crc = CRC32()
        crc.update("$name ${array.numpy} $shape".encodeToByteArray())
        crc.update(array.bytes.duplicate().window(0, array.bytes.limit()))
        return crc.value
    }

    private fun crc(text: String): String = CRC32().also { it.update(text.encodeToByteArray()) }.value.toString()

    private fun damaged(path: Path, reason: String, cause: Throwable? = null) = DamagedFileException(
        "$path is damaged: $reason. Delete it, or put a whole copy in its place.", cause,
    )
}
