package org.omnidraft.engine.models

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtLoraAdapter
import ai.onnxruntime.OrtSession
import java.nio.FloatBuffer
import java.nio.LongBuffer
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.window

/** Longer passes are cut, which bounds the memory of one. */
internal const val MAX_PASS = 256

/** Longest text that a drafter keeps, in tokens: the recent part of a longer one. */
internal const val DRAFTER_CONTEXT = 8192

// Paths in a tree are padded to a multiple of so many slots: ONNX Runtime plans each shape anew.
private const val DEPTH_STEP = 8

/**
 * A [CausalModel] over a folder that `omnidraft models pull` wrote, or over a bundle that
 * `omnidraft export --backend onnx` wrote. The KV cache is updated in place.
 *
 * Logits are bit for bit those of OmniDraft's Python engine with the same version of ONNX Runtime and
 * the same processor.
 *
 * @param description the folder, whose files have been verified: see [OnnxDescription.read].
 * @param operators the library of OmniDraft's operators: a path, or where the system looks for
 *   libraries by name, as Android does, its name: `libomnidraft_ops.so`.
 * @param threads threads that work on one pass; at most the manifest's do, so that results stay
 *   batch-invariant.
 * @param maxLength longest sequence in tokens; null: the model's context length, of a drafter at most
 *   8,192, since it keeps the recent part of a longer text.
 * @param memory where the cache lies.
 * @throws DamagedFileException ONNX Runtime refuses the graph.
 * @throws OmniDraftException it refuses the operators, or the memory cannot be reserved.
 */
class OnnxModel(
    description: OnnxDescription,
    operators: String,
    threads: Int = 2,
    maxLength: Int? = null,
    memory: CacheMemory = CacheMemory.direct,
) : AdaptiveModel {
    override val vocabSize = description.vocabSize
    /** How many threads work on a pass. */
    val threads = description.threads(threads)
    /** Longest sequence the model was made for, in tokens; [maxLength] may be less. */
    val ownLength = description.contextLength
    /**
     * Tokens that a pass takes at least, the last one being repeated. Where a kernel treats a lone
     * row differently from the rows of any larger pass, two make the model batch-invariant.
     */
    var leastPass = 1

    private val loraSizes = description.loraSizes
    private val session = OnnxSession(description.graph, operators, passOptions(this.threads))
    private val inputs = HashMap<String, OnnxTensor>()
    private val outputs = HashMap<String, OnnxTensor>()
    private val tokenIds = LongInput(MAX_PASS)
    private val positions = LongInput(MAX_PASS)
    private var paths = LongInput(0)
    private val firstRow = LongInput(1)
    private val lastPosition = directBytes(4).asIntBuffer()
    private val totalLength = directBytes(4).asIntBuffer()
    private var boundCount = 0
    private var boundDepth = -1

    // In a bundle for any program attention takes the whole buffer and is told how much of it is
    // filled; our own sees a prefix.
    private val toldLength: Boolean
    private val cache: KvCache
    private val rows: List<RowOutput>
    private var lastRow = 0
    private var heldTokens = IntArray(64)
    private var tree: TokenTree? = null
    private var lora: ActiveLora? = null

    override val maxLength: Int
    override var length = 0
        private set

    init {
        try {
            val given = session.outputs
            toldLength = "total_length" in session.inputs
            val bound = if ("hidden" in given) minOf(ownLength, DRAFTER_CONTEXT) else ownLength
            this.maxLength = minOf(ownLength, maxLength ?: bound)
            require(this.maxLength >= 1) { "a context of $maxLength tokens" }
            val past = session.inputs.filterKeys { it.startsWith("past.") }
            cache = KvCache(past, this.maxLength, toldLength, memory)
            rows = listOf("logits", "hidden").filter { it in given }
                .map { RowOutput(it, given.getValue(it).shape[2].toInt()) }
            bind("first_row", firstRow.tensor(1))
            if (toldLength) {
                bind("last_position", OnnxTensor.createTensor(environment, lastPosition, longArrayOf(1)))
                bind("total_length", OnnxTensor.createTensor(environment, totalLength, longArrayOf()))
            }
        } catch (error: Throwable) {
            session.close()
            throw error
        }
    }

    override val held: IntArray get() = heldTokens.copyOf(tree?.chain ?: length)
    override val scoresTrees: Boolean get() = !toldLength
    override val hiddenSize: Int get() = rows.getOrNull(1)?.width ?: 0
    override val adapter: LoraWeights? get() = lora?.weights

    /** Bytes of keys and values that a token takes. */
    val kvBytesPerToken: Int get() = cache.bytesPerToken

    override fun lastHidden(): FloatBuffer {
        check(hiddenSize > 0) { "this model's graph gives no hidden states" }
        return rows[1].view(lastRow, 1)
    }

    override fun forward(tokens: IntArray, rows: Int): FloatBuffer {
        tree?.let { throw it.refuse("there is no ordinary pass") }
        checkPass(tokens, rows)
        return pass(tokens, rows, 0, emptyList())
    }

    override fun forwardTree(tokens: IntArray, parents: IntArray, rows: Int): FloatBuffer {
        if (!scoresTrees) {
            throw OmniDraftException(
                "A drafter that was exported for any program scores no trees of tokens. Draft " +
                    "chains with it."
            )
        }
        checkPass(tokens, rows)
        val grown = tree ?: TokenTree(length)
        val paths = grown.paths(parents, tokens.size)
        val logits = pass(tokens, rows, grown.chain, paths)
        grown.grow(paths)
        tree = grown
        return logits
    }

    override fun keep(path: IntArray) {
        val held = tree ?: TokenTree(length)
        cache.move(held.moves(path))
        path.forEachIndexed { i, slot -> heldTokens[held.chain + i] = heldTokens[slot] }
        length = held.chain + path.size
        tree = null
    }

    override fun truncate(length: Int) {
        require(length in 0..this.length) { "cannot truncate ${this.length} tokens to $length" }
        tree?.let { if (length > it.chain) throw it.refuse("nothing is cut to $length tokens") }
        tree = null
        this.length = length
    }

    override fun setAdapter(adapter: LoraWeights?) {
        checkAdapter(adapter.orEmpty(), loraSizes)
        // ONNX Runtime has no adapter of rank 0, and without one the defaults are of rank 0.
        val given = adapter?.filterValues { it.values.isNotEmpty() }
        val new = if (adapter == null) null else ActiveLora(adapter, given.orEmpty())
        lora?.close()
        lora = new
        truncate(0)
    }

    /** Append tokens, or nodes of a tree behind a chain, and return the last rows of logits. */
    private fun pass(tokens: IntArray, rows: Int, chain: Int, paths: List<IntArray>): FloatBuffer {
        this.rows.forEach { it.make(rows) }
        var done = 0
        for (start in tokens.indices step MAX_PASS) {
            val count = minOf(MAX_PASS, tokens.size - start)
            val wanted = minOf(count, maxOf(0, start + count - (tokens.size - rows)))
            val part = if (paths.isEmpty()) paths else paths.subList(start, start + count)
            run(tokens, start, count, length + start, done, wanted, chain, part)
            done += wanted
        }
        if (length + tokens.size > heldTokens.size) {
            heldTokens = heldTokens.copyOf(maxOf(2 * heldTokens.size, length + tokens.size))
        }
        tokens.copyInto(heldTokens, length)
        length += tokens.size
        lastRow = rows - 1
        return this.rows[0].view(0, rows)
    }

    /** Run the graph once; write the last [wanted] rows from row [row] on. */
    private fun run(
        tokens: IntArray, start: Int, given: Int, past: Int, row: Int, wanted: Int, chain: Int,
        paths: List<IntArray>,
    ) {
        val count = maxOf(given, leastPass) // more: the same token at the same place again
        val end = past + given
        val depth = roundUp(paths.maxOfOrNull { it.size } ?: 0, DEPTH_STEP)
        bindPass(count, depth)
        cache.bind(end) { name, tensor ->
            inputs["past.$name"] = tensor
            outputs["present.$name"] = tensor
        }
        this.rows.forEach { output -> output.bind(row, wanted)?.let { outputs[output.name] = it } }
        for (i in 0 until count) tokenIds[i] = tokens[start + minOf(i, given - 1)].toLong()
        if (toldLength) {
            lastPosition.put(0, end - 1)
            totalLength.put(0, end)
        } else {
            for (i in 0 until count) {
                val path = paths.getOrNull(minOf(i, given - 1))
                positions[i] = if (path != null) chain + path.size - 1L else minOf(past + i, end - 1).toLong()
                for (d in 0 until depth) this.paths[i * depth + d] = path!!.getOrElse(d) { -1 }.toLong()
            }
        }
        firstRow[0] = (count - wanted).toLong()
        session.run(inputs, pinned = outputs, run = lora?.options).close()
    }

    private fun bindPass(count: Int, depth: Int) {
        if (count == boundCount && depth == boundDepth) return
        bind("tokens", tokenIds.tensor(1, count))
        if (!toldLength) {
            bind("positions", positions.tensor(1, count))
            if (count * depth > paths.size) paths = LongInput(count * depth)
            bind("paths", paths.tensor(count, depth))
        }
        boundCount = count
        boundDepth = depth
    }

    private fun bind(name: String, tensor: OnnxTensor) {
        inputs.put(name, tensor)?.close()
    }

    override fun close() {
        session.close()
        lora?.close()
        rows.forEach { it.close() }
        inputs.filterKeys { !it.startsWith("past.") }.values.forEach { it.close() }
        cache.close()
    }
}

/** int64 numbers that are written before a pass. */
private class LongInput(val size: Int) {
    private val buffer: LongBuffer = directBytes(size * Long.SIZE_BYTES).asLongBuffer()

    operator fun set(index: Int, value: Long) {
        buffer.put(index, value)
    }

    /** A tensor over the first numbers. */
    fun tensor(vararg shape: Int): OnnxTensor {
        val view = buffer.duplicate().window(0, shape.reduce(Int::times))
        return OnnxTensor.createTensor(environment, view, LongArray(shape.size) { shape[it].toLong() })
    }
}

/** What is computed for each row that is asked for: float32 `[1, rows, width]`. */
private class RowOutput(val name: String, val width: Int) : AutoCloseable {
    private var rows = 0
    private var buffer = directBytes(0)
    private var tensor: OnnxTensor? = null
    private var bound = 0 to 0

    /** Have room for so many rows. */
    fun make(count: Int) {
        if (count <= rows) return
        buffer = directBytes(Math.multiplyExact(count, width * Float.SIZE_BYTES))
        rows = count
        tensor?.close()
        tensor = null
    }

    /** A tensor of [count] rows from [row] on; null where it is the one that was bound last. */
    fun bind(row: Int, count: Int): OnnxTensor? {
        if (tensor != null && bound == row to count) return null
        tensor?.close()
        bound = row to count
        val shape = longArrayOf(1, count.toLong(), width.toLong())
        return OnnxTensor.createTensor(environment, view(row, count), shape).also { tensor = it }
    }

    fun view(row: Int, count: Int): FloatBuffer {
        val bytes = width.toLong() * Float.SIZE_BYTES
        return buffer.part(row * bytes, count * bytes).asFloatBuffer()
    }

    override fun close() {
        tensor?.close()
    }
}

/** A LoRA adapter that passes use. */
private class ActiveLora(val weights: LoraWeights, given: LoraWeights) : AutoCloseable {
    val options = OrtSession.RunOptions()
    private val adapter: OrtLoraAdapter? = try {
        if (given.isEmpty()) null
        else OrtLoraAdapter.create(onnxAdapter(given).let { b -> ByteArray(b.remaining()).also(b::get) })
    } catch (error: OrtException) {
        options.close()
        throw OmniDraftException("ONNX Runtime refuses the adapter: ${error.message}.", error)
    }

    init {
        adapter?.let { options.addActiveLoraAdapter(it) }
    }

    override fun close() {
        options.close()
        adapter?.close()
    }
}
