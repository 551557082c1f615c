package org.omnidraft.engine.models

import com.google.flatbuffers.FlatBufferBuilder
import com.google.flatbuffers.Table
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.file.Files
import java.nio.file.Path
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.files.readBounded
import org.omnidraft.engine.files.reading
import org.omnidraft.engine.files.replaceFile
import org.omnidraft.engine.window

private const val FORMAT_VERSION = 1
private const val FLOAT = 1
private const val IDENTIFIER = "TORT"
private const val LARGEST_ADAPTER = 1L shl 29

/** LoRA adapters as ONNX Runtime's `.onnx_adapter` files: the LoRA alone, of no drafter. */
object OnnxAdapterFile {
    /**
     * Write an adapter, whole or not at all, replacing a file that is there.
     *
     * @throws org.omnidraft.engine.OmniDraftException the file cannot be written.
     */
    fun write(path: Path, adapter: LoraWeights) = replaceFile(path, onnxAdapter(adapter))

    /**
     * Read an adapter.
     *
     * @throws ModelNotFoundException there is no such file.
     * @throws DamagedFileException it is no adapter.
     */
    fun read(path: Path): LoraWeights {
        if (!Files.isRegularFile(path)) throw ModelNotFoundException("There is no adapter $path.")
        val content = reading(path) { readBounded(path, LARGEST_ADAPTER) }
        try {
            return AdapterTable(ByteBuffer.wrap(content).order(ByteOrder.LITTLE_ENDIAN)).parameters()
        } catch (error: RuntimeException) { // whatever lies outside the file, or contradicts itself
            throw DamagedFileException("$path is no adapter that can be read: ${error.message}.", error)
        }
    }
}

/**
 * A LoRA adapter in ONNX Runtime's format, the content of an `.onnx_adapter` file.
 *
 * ONNX Runtime's interface for Java takes no values for initializers that can be overridden, which
 * LoRA inputs are. Adapters are the way to give them: `RunOptions.addActiveLoraAdapter`. It reads
 * adapters and does not write them, so they are written here, by the schema of its
 * `adapter_schema.fbs`: a table of format, adapter and model version and of parameters, each of which
 * is a table of name, dimensions (int64), type and little-endian bytes.
 *
 * @return a buffer whose remaining bytes are the content.
 */
internal fun onnxAdapter(adapter: LoraWeights): ByteBuffer {
    val bytes = adapter.values.sumOf { it.values.size.toLong() * Float.SIZE_BYTES + 256 } + 1024
    require(bytes < Int.MAX_VALUE) { "an adapter of $bytes bytes is too large" }
    val builder = FlatBufferBuilder(bytes.toInt())
    val parameters = adapter.map { (name, matrix) ->
        val content = builder.floats(matrix.values)
        builder.startVector(Long.SIZE_BYTES, 2, Long.SIZE_BYTES)
        builder.addLong(matrix.columns.toLong()) // vectors are built from their ends
        builder.addLong(matrix.rows.toLong())
        val dimensions = builder.endVector()
        val label = builder.createString(name)
        builder.startTable(4)
        builder.addOffset(0, label, 0)
        builder.addOffset(1, dimensions, 0)
        builder.addInt(2, FLOAT, 0)
        builder.addOffset(3, content, 0)
        builder.endTable()
    }
    builder.startVector(Int.SIZE_BYTES, parameters.size, Int.SIZE_BYTES)
    for (parameter in parameters.asReversed()) builder.addOffset(parameter)
    val list = builder.endVector()
    builder.startTable(4)
    builder.addInt(0, FORMAT_VERSION, 0)
    builder.addInt(1, 1, 0)
    builder.addInt(2, 1, 0)
    builder.addOffset(3, list, 0)
    builder.finish(builder.endTable(), IDENTIFIER)
    return builder.dataBuffer()
}

/** A vector of bytes that begins at a multiple of 8, and holds floats. */
private fun FlatBufferBuilder.floats(values: FloatArray): Int {
    startVector(1, values.size * Float.SIZE_BYTES, Long.SIZE_BYTES)
    for (value in values.reversedArray()) addFloat(value)
    return endVector()
}

/** A table of flatbuffers, field by field. */
private open class Fields(buffer: ByteBuffer, place: Int) : Table() {
    init {
        __reset(place, buffer)
    }

    fun field(number: Int): Int {
        val offset = __offset(4 + 2 * number)
        require(offset != 0) { "a field is missing" }
        return bb_pos + offset
    }
}

private class AdapterTable(private val buffer: ByteBuffer) : Fields(buffer, buffer.getInt(0)) {
    init {
        require(__has_identifier(buffer, IDENTIFIER)) { "it begins as something else" }
        require(buffer.getInt(field(0)) == FORMAT_VERSION) { "its format is another version's" }
    }

    fun parameters(): LoraWeights {
        val list = field(3) - bb_pos
        val start = __vector(list)
        return (0 until __vector_len(list)).associate { Parameter(buffer, __indirect(start + 4 * it)).read() }
    }
}

private class Parameter(private val buffer: ByteBuffer, place: Int) : Fields(buffer, place) {
    fun read(): Pair<String, Matrix> {
        val name = __string(field(0))
        val sizes = field(1) - bb_pos
        require(__vector_len(sizes) == 2 && buffer.getInt(field(2)) == FLOAT) { "$name is no float32 matrix" }
        val (rows, columns) = List(2) { Math.toIntExact(buffer.getLong(__vector(sizes) + 8 * it)) }
        val data = field(3) - bb_pos
        require(__vector_len(data).toLong() == 4L * rows * columns) { "$name is not as long as its sizes say" }
        val start = __vector(data)
        val floats = buffer.duplicate().window(start, start + __vector_len(data)).order(ByteOrder.LITTLE_ENDIAN)
        return name to Matrix(rows, columns, FloatArray(rows * columns).also { floats.asFloatBuffer().get(it) })
    }
}
