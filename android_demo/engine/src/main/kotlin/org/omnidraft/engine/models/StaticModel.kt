package org.omnidraft.engine.models

import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.TensorInfo
import java.nio.ByteBuffer
import java.nio.FloatBuffer
import org.omnidraft.engine.OmniDraftException

// Added to scores of columns that a row must not see: see runtime/engines/qnn.py.
private const val MASKED = -100f

/**
 * A [CausalModel] over graphs for passes of fixed sizes that leave the KV cache to the host, as chips
 * for neural networks demand.
 *
 * Inputs of a graph for T tokens behind a cache of C: `tokens`, `positions` int32 `[1, T]`; `mask`
 * `[1, 1, T, C + T]`, float32 or uint8; `past.{layer}.key` `[1, heads, size, C]`, `past.{layer}.value`
 * `[1, heads, C, size]`, of any type, which are passed on as they are; LoRA inputs of one rank. What it
 * gives: `logits` `[1, T, vocabSize]`, `hidden`, and `present.…` of its own tokens.
 *
 * @param sessions by the number of tokens that each takes; they belong to the model from now on.
 */
internal class StaticModel(sessions: Map<Int, OnnxSession>, memory: CacheMemory) : AdaptiveModel {
    private val passes: List<StaticPass>
    private val past: Map<String, ByteBuffer>
    private val loraShapes: Map<String, List<Int>>
    private val hidden: FloatBuffer
    private var logits = FloatBuffer.allocate(0)
    private var heldTokens: IntArray

    override val vocabSize: Int
    override val maxLength: Int
    override val hiddenSize: Int
    override val scoresTrees = false
    override var adapter: LoraWeights? = null
        private set
    override var length = 0
        private set

    init {
        try {
            val any = sessions.values.first()
            val caches = any.inputs.filterKeys { it.startsWith("past.") }
            maxLength = caches.getValue("past.0.key").shape.last().toInt()
            vocabSize = any.outputs.getValue("logits").shape.last().toInt()
            hiddenSize = any.outputs["hidden"]?.shape?.last()?.toInt() ?: 0
            past = caches.mapValues { (_, info) -> memory.buffers(1, info.bytes, maxLength).single() }
            loraShapes = any.inputs.filterKeys { it.startsWith("lora.") }
                .mapValues { (_, info) -> info.shape.map(Long::toInt) }
            hidden = directBytes(hiddenSize * Float.SIZE_BYTES).asFloatBuffer()
            heldTokens = IntArray(maxLength)
            passes = sessions.toSortedMap().map { (size, session) -> StaticPass(session, size, maxLength, past) }
            setAdapter(null)
        } catch (error: Throwable) {
            sessions.values.forEach { it.close() }
            throw error
        }
    }

    override val held: IntArray get() = heldTokens.copyOf(length)

    override fun lastHidden(): FloatBuffer {
        check(hiddenSize > 0) { "this model's graph gives no hidden states" }
        return hidden.duplicate()
    }

    override fun forward(tokens: IntArray, rows: Int): FloatBuffer {
        checkPass(tokens, rows)
        val wanted = rows * vocabSize
        if (logits.capacity() < wanted) logits = directBytes(wanted * Float.SIZE_BYTES).asFloatBuffer()
        val first = tokens.size - rows
        var done = 0
        while (done < tokens.size) {
            // The shortest graph that takes what is left, else the longest.
            val left = tokens.size - done
            val pass = passes.firstOrNull { it.size >= left } ?: passes.last()
            val count = minOf(left, pass.size)
            pass.run(tokens, done, count, length)
            for (row in maxOf(0, first - done) until count) {
                pass.logits.copyRow(row, logits, done + row - first, vocabSize)
            }
            pass.hidden?.copyRow(count - 1, hidden, 0, hiddenSize)
            tokens.copyInto(heldTokens, length, done, done + count)
            length += count
            done += count
        }
        return logits.duplicate().also { it.limit(wanted) }
    }

    override fun forwardTree(tokens: IntArray, parents: IntArray, rows: Int): FloatBuffer =
        throw OmniDraftException("A drafter for an NPU scores no trees of tokens. Draft chains with it.")

    override fun keep(path: IntArray) = require(path.isEmpty()) { "no tree is held" }

    override fun truncate(length: Int) {
        require(length in 0..this.length) { "cannot truncate ${this.length} tokens to $length" }
        this.length = length
    }

    override fun setAdapter(adapter: LoraWeights?) {
        val given = adapter.orEmpty()
        checkAdapter(given, sizesBesideRank(loraShapes.mapValues { (_, shape) -> shape.map(Int::toLong) }))
        for ((name, matrix) in given) {
            // Compiled for one rank; lower ones get further zeros.
            val rank = if (name.endsWith(".A")) matrix.columns else matrix.rows
            val most = loraShapes.getValue(name)[if (name.endsWith(".A")) 1 else 0]
            if (rank > most) {
                throw OmniDraftException(
                    "The adapter has rank $rank, this drafter takes at most $most. " +
                        "Export it again with --lora-rank $rank."
                )
            }
        }
        for ((name, shape) in loraShapes) {
            val values = directBytes(shape[0] * shape[1] * Float.SIZE_BYTES).asFloatBuffer()
            given[name]?.let { matrix ->
                for (row in 0 until matrix.rows) for (column in 0 until matrix.columns) {
                    values.put(row * shape[1] + column, matrix.values[row * matrix.columns + column])
                }
            }
            passes.forEach { it.bindFloats(name, values, shape) }
        }
        this.adapter = adapter
        length = 0
    }

    override fun close() = passes.forEach { it.close() }
}

/** A graph for one number of tokens, whose inputs and outputs stay where they are. */
private class StaticPass(
    private val session: OnnxSession,
    val size: Int,
    private val context: Int,
    private val past: Map<String, ByteBuffer>,
) : AutoCloseable {
    private val inputs = HashMap<String, OnnxTensor>()
    private val outputs = HashMap<String, OnnxTensor>()
    private val presents = HashMap<String, ByteBuffer>()
    private val tokens = directBytes(size * Int.SIZE_BYTES).asIntBuffer()
    private val positions = directBytes(size * Int.SIZE_BYTES).asIntBuffer()
    private val mask: ByteBuffer
    private val narrow: Boolean
    private var seen = 0 // columns of the cache that the mask shows

    /** float32 `[size, …]`. */
    val logits: FloatBuffer
    val hidden: FloatBuffer?

    init {
        val shape = longArrayOf(1, size.toLong())
        inputs["tokens"] = OnnxTensor.createTensor(environment, tokens, shape)
        inputs["positions"] = OnnxTensor.createTensor(environment, positions, shape)
        val told = session.inputs.getValue("mask")
        narrow = told.type == OnnxJavaType.UINT8
        if (!narrow && told.type != OnnxJavaType.FLOAT) {
            throw OmniDraftException(
                "The drafter's mask is ${told.onnxType}, which ONNX Runtime's interface for Java does not " +
                    "have. Export it again with this version of omnidraft."
            )
        }
        mask = bind("mask", told, inputs)
        for (row in 0 until size) {
            for (column in 0 until context) show(row, column, false)
            for (column in 0 until size) show(row, context + column, column <= row)
        }
        for ((name, cache) in past) inputs[name] = tensor(cache, session.inputs.getValue(name))
        for ((name, info) in session.outputs) {
            if (name.startsWith("present.")) presents[name] = bind(name, info, outputs)
        }
        logits = bind("logits", session.outputs.getValue("logits"), outputs).asFloatBuffer()
        hidden = session.outputs["hidden"]?.let { bind("hidden", it, outputs).asFloatBuffer() }
    }

    fun bindFloats(name: String, values: FloatBuffer, shape: List<Int>) {
        val dimensions = LongArray(shape.size) { shape[it].toLong() }
        inputs.put(name, OnnxTensor.createTensor(environment, values, dimensions))?.close()
    }

    /** Append [count] tokens to the cache, which holds [length]. */
    fun run(ids: IntArray, start: Int, count: Int, length: Int) {
        for (row in 0 until size) {
            tokens.put(row, if (row < count) ids[start + row] else 0)
            positions.put(row, minOf(length + row, context - 1))
            for (column in minOf(seen, length) until maxOf(seen, length)) show(row, column, column < length)
        }
        seen = length
        session.run(inputs, pinned = outputs).close()
        for ((name, cache) in past) {
            val info = session.inputs.getValue(name)
            val new = presents.getValue(name.replace("past", "present"))
            val number = info.type.size
            val (_, heads, second, third) = info.shape.map(Long::toInt)
            // Runs of neighbouring numbers: of keys the tokens, of values what a head holds of them.
            val keys = name.endsWith(".key")
            val runs = if (keys) heads * second else heads
            val width = if (keys) 1 else third
            val bytes = count * width * number
            for (run in 0 until runs) {
                val from = run * size * width * number
                val to = (run * context + length) * width * number
                for (i in 0 until bytes step Short.SIZE_BYTES) cache.putShort(to + i, new.getShort(from + i))
            }
        }
    }

    /** Whether a row sees a column of the mask: the cache's, then those of the pass. */
    private fun show(row: Int, column: Int, sees: Boolean) {
        val place = row * (context + size) + column
        if (narrow) mask.put(place, if (sees) -1 else 0)
        else mask.putFloat(place * Float.SIZE_BYTES, if (sees) 0f else MASKED)
    }

    private fun bind(name: String, info: TensorInfo, where: MutableMap<String, OnnxTensor>): ByteBuffer {
        val buffer = directBytes(Math.toIntExact(info.bytes))
        where[name] = tensor(buffer, info)
        return buffer
    }

    override fun close() {
        session.close()
        (inputs.values + outputs.values).forEach { it.close() }
    }
}

private fun tensor(buffer: ByteBuffer, info: TensorInfo): OnnxTensor =
    OnnxTensor.createTensor(environment, buffer, info.shape, info.type)

private val TensorInfo.bytes: Long get() = shape.fold(type.size.toLong(), Long::times)

/** Copy a row of [width] numbers to a row of another buffer. */
private fun FloatBuffer.copyRow(row: Int, target: FloatBuffer, place: Int, width: Int) {
    val source = duplicate()
    source.limit((row + 1) * width).position(row * width)
    val copy = target.duplicate()
    copy.limit((place + 1) * width).position(place * width)
    copy.put(source)
}
