package org.omnidraft.engine.core

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.FloatBuffer
import org.omnidraft.engine.models.CausalModel
import org.omnidraft.engine.models.checkPass

/**
 * Two vocabularies and the rows of two models over them, as tests/vectors/README.md says.
 *
 * @param drafter surfaces; null for a special token.
 * @param tail bytes of the text that rows depend on.
 */
class World(
    private val seed: Long,
    val drafter: List<ByteArray?>,
    val target: List<ByteArray?>,
    private val tail: Int,
) {
    val pair = VocabularyPair(Vocabulary(drafter), Vocabulary(target))

    fun surfaces(ofTarget: Boolean) = if (ofTarget) target else drafter

    fun row(ofTarget: Boolean, context: List<Int>): FloatArray {
        val surfaces = surfaces(ofTarget)
        var end = ByteArray(0)
        for (token in context.asReversed()) {
            if (end.size >= tail) break
            end = (surfaces[token] ?: ByteArray(0)) + end
        }
        end = end.copyOfRange(maxOf(0, end.size - tail), end.size)
        return FloatArray(surfaces.size) {
            val surface = surfaces[it] ?: ByteArray(0)
            val both = if (surface.isEmpty()) 0 else points(2, end, surface.copyOf(1))
            (3 * both + points(if (ofTarget) 0 else 1, end, surface)) / 512f
        }
    }

    /** The longest token at each place, of equals the first; none where a place has none. */
    fun segment(text: ByteArray): IntArray? {
        val tokens = ArrayList<Int>()
        var at = 0
        while (at < text.size) {
            val best = drafter.indices
                .filter { token -> drafter[token]?.let { it.isNotEmpty() && text.startsWith(it, at) } == true }
                .maxByOrNull { drafter[it]!!.size } ?: return null
            tokens += best
            at += drafter[best]!!.size
        }
        return tokens.toIntArray()
    }

    private fun points(model: Long, tail: ByteArray, text: ByteArray): Long {
        var hash = -0x340d631b7bdddcdbL // 0xcbf29ce484222325
        fun add(value: Long) {
            hash = (hash xor value) * 0x100000001b3L
        }
        add(seed)
        add(model)
        tail.forEach { add(it.toLong() and 0xff) }
        add(256)
        text.forEach { add(it.toLong() and 0xff) }
        return ((hash xor (hash ushr 32)) * -0x61c8864680b583ebL) ushr 54 // 0x9e3779b97f4a7c15
    }

    private fun ByteArray.startsWith(piece: ByteArray, at: Int) =
        at + piece.size <= size && piece.indices.all { this[at + it] == piece[it] }
}

/** A model of a world. */
class ToyModel(
    private val world: World,
    private val ofTarget: Boolean,
    override val maxLength: Int,
    override val scoresTrees: Boolean = true,
) : CausalModel {
    private val tokens = ArrayList<Int>()
    private val paths = ArrayList<List<Int>>()
    private var chain = -1

    /** Tokens of each pass. */
    val passes = ArrayList<Int>()

    /** What happens before each pass. */
    var before: (ToyModel) -> Unit = {}

    /** What is done to the rows of each pass. */
    var spoil: (FloatBuffer) -> Unit = {}

    override val vocabSize = world.surfaces(ofTarget).size
    override val length get() = tokens.size
    override val held get() = (if (chain < 0) tokens else tokens.subList(0, chain)).toIntArray()

    override fun forward(tokens: IntArray, rows: Int): FloatBuffer {
        check(chain < 0) { "a tree is held" }
        checkPass(tokens, rows)
        before(this)
        val start = length
        this.tokens += tokens.toList()
        return rows(tokens.indices.map { this.tokens.subList(0, start + it + 1) }, rows)
    }

    override fun forwardTree(tokens: IntArray, parents: IntArray, rows: Int): FloatBuffer {
        check(scoresTrees)
        checkPass(tokens, rows)
        before(this)
        if (chain < 0) chain = length
        val contexts = tokens.indices.map { i ->
            val above = if (parents[i] >= chain) paths[parents[i] - chain] else emptyList()
            paths += above + length
            this.tokens += tokens[i]
            this.tokens.subList(0, chain) + paths.last().map { this.tokens[it] }
        }
        return rows(contexts, rows)
    }

    override fun keep(path: IntArray) {
        val start = if (chain < 0) length else chain
        require(path.isEmpty() || path.toList() == paths[path.last() - start])
        val kept = path.map { tokens[it] }
        tokens.subList(start, length).clear()
        tokens += kept
        chain = -1
        paths.clear()
    }

    override fun truncate(length: Int) {
        require(length in 0..this.length)
        check(chain < 0 || length <= chain) { "a tree is held" }
        chain = -1
        paths.clear()
        tokens.subList(length, this.length).clear()
    }

    override fun close() = Unit

    private fun rows(contexts: List<List<Int>>, rows: Int): FloatBuffer {
        passes += contexts.size
        val buffer = ByteBuffer.allocateDirect(4 * rows * vocabSize).order(ByteOrder.nativeOrder())
            .asFloatBuffer()
        contexts.takeLast(rows).forEach { buffer.put(world.row(ofTarget, it)) }
        buffer.flip()
        spoil(buffer)
        return buffer
    }
}
