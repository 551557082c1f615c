package org.omnidraft.engine.models

import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.TensorInfo
import java.nio.ByteBuffer

/** A prefix of the cache is seen by a pass, of this granularity: two tiles of the kernels. */
internal const val LENGTH_STEP = 96
private const val KEY_TILE = LENGTH_STEP / 2

/**
 * The keys and values of all layers, which passes update in place.
 *
 * @param inputs the graph's inputs of keys and values in turn, `past.{layer}.key`,
 *   `past.{layer}.value`, with what the graph says of them; an open size is the length.
 * @param maxLength longest sequence in tokens.
 * @param whole passes see the whole cache and are told how much of it is filled, so position need
 *   not come first. Otherwise they see a prefix.
 */
internal class KvCache(
    inputs: Map<String, TensorInfo>,
    maxLength: Int,
    private val whole: Boolean,
    memory: CacheMemory,
) : AutoCloseable {
    val capacity = roundUp(maxLength, LENGTH_STEP)
    private val type = inputs.values.first().type
    private val bytesEach = if (type == OnnxJavaType.FLOAT16) Short.SIZE_BYTES else Float.SIZE_BYTES
    private val shape = inputs.values.first().shape.map { if (it < 0) capacity.toLong() else it }
    private val names = inputs.keys.map { it.removePrefix("past.") }
    private val buffers =
        memory.buffers(names.size, shape.reduce(Long::times) * bytesEach, maxLength)
    private val bound = ArrayList<OnnxTensor>()
    private var boundLength = 0

    /** Bytes of keys and values that a token takes. */
    val bytesPerToken: Int
        get() = (names.size * shape.reduce(Long::times) * bytesEach / capacity).toInt()

    /**
     * Let a pass see [length] tokens, and write there.
     *
     * @param bind called with the tensor for `past.{name}` and `present.{name}` where it is another
     *   than before.
     */
    fun bind(length: Int, bind: (name: String, tensor: OnnxTensor) -> Unit) {
        val seen = if (whole) capacity else roundUp(length, LENGTH_STEP)
        if (seen == boundLength) return
        val before = ArrayList(bound)
        bound.clear()
        val sizes = (if (whole) shape else listOf(seen.toLong()) + shape.drop(1)).toLongArray()
        val bytes = sizes.reduce(Long::times) * bytesEach
        for ((name, buffer) in names.zip(buffers)) {
            val tensor = OnnxTensor.createTensor(environment, buffer.part(0, bytes), sizes, type)
            bound += tensor
            bind(name, tensor)
        }
        before.forEach { it.close() }
        boundLength = seen
    }

    /** Move the keys and values of slots, of all layers. */
    fun move(moves: List<Pair<Int, Int>>) {
        check(!whole) { "position does not come first in this cache" }
        val row = shape.drop(1).reduce(Long::times).toInt()
        for ((index, buffer) in buffers.withIndex()) {
            val isKey = index % 2 == 0
            for ((from, to) in moves) if (isKey) moveKey(buffer, row, from, to)
            else copy(buffer, from * row, to * row, row)
        }
    }

    // Keys lie in tiles [kv_heads * head_size, KEY_TILE], each of KEY_TILE tokens.
    private fun moveKey(keys: ByteBuffer, row: Int, from: Int, to: Int) {
        val source = from / KEY_TILE * KEY_TILE * row + from % KEY_TILE
        val target = to / KEY_TILE * KEY_TILE * row + to % KEY_TILE
        for (i in 0 until row) copy(keys, source + i * KEY_TILE, target + i * KEY_TILE, 1)
    }

    private fun copy(buffer: ByteBuffer, from: Int, to: Int, count: Int) {
        if (bytesEach == Short.SIZE_BYTES) {
            for (i in 0 until count) buffer.putShort(2 * (to + i), buffer.getShort(2 * (from + i)))
        } else {
            for (i in 0 until count) buffer.putInt(4 * (to + i), buffer.getInt(4 * (from + i)))
        }
    }

    override fun close() {
        bound.forEach { it.close() }
        bound.clear()
        boundLength = 0
    }
}

internal fun roundUp(value: Int, step: Int) = (value + step - 1) / step * step
