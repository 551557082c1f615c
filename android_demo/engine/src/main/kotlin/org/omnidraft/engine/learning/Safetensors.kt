package org.omnidraft.engine.learning

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.channels.FileChannel
import java.nio.file.Path
import java.nio.file.StandardOpenOption.READ
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.omnidraft.engine.window

/**
 * An array of numbers as safetensors files hold it.
 *
 * @property dtype safetensors' name, such as `F32`.
 * @property bytes little-endian, row by row, from position 0 to the limit. Not to be changed.
 */
class NumberArray(val dtype: String, val shape: List<Int>, val bytes: ByteBuffer) {
    init {
        val size = DTYPES[dtype]?.first ?: throw IllegalArgumentException("the type '$dtype' is not known")
        val expected = shape.fold(size.toLong()) { all, n -> Math.multiplyExact(all, n.toLong()) }
        require(shape.all { it >= 0 } && expected == bytes.limit().toLong()) {
            "${bytes.limit()} bytes for $dtype $shape"
        }
    }

    /** numpy's name of the type, such as `<f4`. */
    internal val numpy: String get() = DTYPES.getValue(dtype).second

    internal val width: Int get() = DTYPES.getValue(dtype).first

    /** The numbers of an `F32` array. */
    fun floats(): FloatArray {
        check(dtype == "F32") { "the array holds $dtype" }
        val view = bytes.duplicate().order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
        return FloatArray(view.remaining()).also(view::get)
    }

    companion object {
        private val DTYPES = mapOf(
            "F64" to (8 to "<f8"), "I64" to (8 to "<i8"), "U64" to (8 to "<u8"), "F32" to (4 to "<f4"),
            "I32" to (4 to "<i4"), "U32" to (4 to "<u4"), "F16" to (2 to "<f2"), "I16" to (2 to "<i2"),
            "U16" to (2 to "<u2"), "I8" to (1 to "|i1"), "U8" to (1 to "|u1"), "BOOL" to (1 to "|b1"),
        )

        /** A float32 array. */
        fun of(values: FloatArray, vararg shape: Int): NumberArray {
            val bytes = ByteBuffer.allocate(values.size * Float.SIZE_BYTES).order(ByteOrder.LITTLE_ENDIAN)
            bytes.asFloatBuffer().put(values)
            return NumberArray("F32", shape.toList(), bytes)
        }

        /** Bytes, as an array of `U8`. */
        fun of(bytes: ByteArray) = NumberArray("U8", listOf(bytes.size), ByteBuffer.wrap(bytes))
    }
}

/** The content of a safetensors file. */
internal fun safetensors(tensors: Map<String, NumberArray>, metadata: Map<String, String>): ByteBuffer {
    // Wide types first, so that each array begins at a multiple of its type's size.
    val order = tensors.entries.sortedWith(compareBy({ -it.value.width }, { it.key }))
    var end = 0L
    val entries = LinkedHashMap<String, JsonObject>()
    entries["__metadata__"] = JsonObject(metadata.mapValues { JsonPrimitive(it.value) })
    for ((name, array) in order) {
        val start = end
        end += array.bytes.limit()
        entries[name] = JsonObject(
            mapOf(
                "dtype" to JsonPrimitive(array.dtype),
                "shape" to JsonArray(array.shape.map(::JsonPrimitive)),
                "data_offsets" to JsonArray(listOf(start, end).map(::JsonPrimitive)),
            )
        )
    }
    val text = JsonObject(entries).toString().encodeToByteArray()
    val header = text + ByteArray((8 - text.size % 8) % 8) { ' '.code.toByte() }
    val content = ByteBuffer.allocate(Math.toIntExact(8 + header.size + end)).order(ByteOrder.LITTLE_ENDIAN)
    content.putLong(header.size.toLong()).put(header)
    for ((_, array) in order) content.put(array.bytes.duplicate().window(0, array.bytes.limit()))
    return content.window(0, content.position())
}

/**
 * A safetensors file whose arrays are read one by one.
 *
 * @throws SerializationException it is none, or damaged.
 * @throws java.io.IOException it cannot be read.
 */
internal class SafetensorsFile(path: Path) : AutoCloseable {
    private val channel = FileChannel.open(path, READ)
    private val start: Long
    private val entries: Map<String, JsonObject>
    val metadata: Map<String, String>

    init {
        try {
            val length = if (channel.size() < 8) -1 else bytes(0, 8).order(ByteOrder.LITTLE_ENDIAN).getLong(0)
            if (length !in 2..minOf(LARGEST_HEADER, channel.size() - 8)) fail("its header does not fit in it")
            start = 8 + length
            val header = Json.parseToJsonElement(bytes(8, length.toInt()).array().decodeToString()) as? JsonObject
                ?: fail("its header is no object")
            entries = (header - "__metadata__").mapValues { it.value.jsonObject }
            metadata = (header["__metadata__"] as? JsonObject).orEmpty().mapValues { it.value.jsonPrimitive.content }
            checkOffsets()
        } catch (error: Throwable) {
            channel.close()
            throw if (error is IllegalArgumentException && error !is SerializationException) {
                SerializationException(error.message, error)
            } else {
                error
            }
        }
    }

    val names: Set<String> get() = entries.keys

    /** @throws SerializationException the entry contradicts itself. */
    fun read(name: String): NumberArray = try {
        val (from, to) = offsets(entries.getValue(name))
        val entry = entries.getValue(name)
        val shape = entry.getValue("shape").jsonArray.map { it.jsonPrimitive.int }
        val dtype = entry.getValue("dtype").jsonPrimitive.content
        NumberArray(dtype, shape, bytes(start + from, Math.toIntExact(to - from)))
    } catch (error: RuntimeException) {
        throw SerializationException("$name is not what it seems to be: ${error.message}", error)
    }

    override fun close() = channel.close()

    /** Arrays lie one behind another, and nothing else does. */
    private fun checkOffsets() {
        var end = 0L
        for ((from, to) in entries.values.map(::offsets).sortedWith(compareBy({ it.first }, { it.second }))) {
            if (from != end || to < from) fail("its arrays do not lie one behind another")
            end = to
        }
        if (start + end != channel.size()) fail("it is not as long as its arrays")
    }

    private fun offsets(entry: JsonObject): Pair<Long, Long> {
        val (from, to) = entry["data_offsets"]?.jsonArray?.map { it.jsonPrimitive.long }?.takeIf { it.size == 2 }
            ?: fail("an array has no place")
        return from to to
    }

    private fun bytes(at: Long, count: Int): ByteBuffer {
        val buffer = ByteBuffer.allocate(count)
        while (buffer.hasRemaining()) {
            if (channel.read(buffer, at + buffer.position()) < 0) fail("it ends too soon")
        }
        return buffer.window(0, count)
    }

    private fun fail(what: String): Nothing = throw SerializationException(what)

    private companion object {
        const val LARGEST_HEADER = 100_000_000L
    }
}
