package org.omnidraft.engine.models

import com.google.flatbuffers.FlatBufferBuilder
import java.nio.ByteBuffer

private const val FORMAT_VERSION = 1
private const val FLOAT = 1

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
    builder.finish(builder.endTable(), "TORT")
    return builder.dataBuffer()
}

/** A vector of bytes that begins at a multiple of 8, and holds floats. */
private fun FlatBufferBuilder.floats(values: FloatArray): Int {
    startVector(1, values.size * Float.SIZE_BYTES, Long.SIZE_BYTES)
    for (value in values.reversedArray()) addFloat(value)
    return endVector()
}
