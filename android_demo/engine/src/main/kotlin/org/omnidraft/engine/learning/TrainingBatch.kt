package org.omnidraft.engine.learning

private const val MASKED = -1e30f

/**
 * Tokens, and what is to be learnt at some of their positions.
 *
 * T positions, R rows, M tokens for a row, C chunks; arrays of several dimensions are row by row.
 * What is left out weighs nothing. Several sequences, or branches beside one, go into one batch when
 * [mask] hides them from each other.
 *
 * @property tokens `[T]` draft tokens.
 * @property rows `[R]` indices of positions whose next-token distributions q carry loss; one may occur
 *   several times.
 * @property positions `[T]` places in the sequence; default: 0 … T − 1.
 * @property mask float32 `[T, T]`, added to the attention's scores: 0 where row t may see column s, a
 *   large negative number elsewhere; every position sees itself. Default: causal.
 * @property directIds `[R, M]` draft tokens, distinct in a row, −1 fills a row up.
 * @property directLogP float32 `[R, M]` finite: the target's log-probabilities of what these tokens
 *   stand for; what the row lacks to 1 is one further outcome.
 * @property directWeight float32 `[R]` weight of D(q' ‖ p) over [directIds] and the rest.
 * @property directTokens float32 `[vocab]`, 1 for the draft tokens over which q is renormalised to q',
 *   0 for others. Default: all.
 * @property label `[R]` a sub-token of an n-gram, or of a chunk.
 * @property labelWeight float32 `[R]` weight of −log q(label).
 * @property chunks float32 `[C, R]`, 1 where a row's label belongs to a chunk, which then has the
 *   likelihood s = Π q(label).
 * @property chunkLogP float32 `[C]` finite: the target's log-likelihood of each chunk.
 * @property chunkWeight float32 `[C]` weight of ALM's binarised divergence.
 * @property merged float32 `[C, R]`, 1 where a chunk, an n-gram, is one more outcome of a row's
 *   distribution q': that of its first sub-token, the row's label.
 * @property temperature ALM's τ.
 */
class TrainingBatch(
    val tokens: IntArray,
    val rows: IntArray,
    val positions: IntArray? = null,
    val mask: FloatArray? = null,
    val directIds: IntArray? = null,
    val directLogP: FloatArray? = null,
    val directWeight: FloatArray? = null,
    val directTokens: FloatArray? = null,
    val label: IntArray? = null,
    val labelWeight: FloatArray? = null,
    val chunks: FloatArray? = null,
    val chunkLogP: FloatArray? = null,
    val chunkWeight: FloatArray? = null,
    val merged: FloatArray? = null,
    val temperature: Float = 100f,
) {
    /** A graph's input: int64 where [ids] is given, else float32. */
    internal class Input(val shape: LongArray, val ids: IntArray? = null, val numbers: FloatArray? = null)

    /**
     * The graph's inputs.
     *
     * @throws IllegalArgumentException sizes contradict each other, an id lies outside the vocabulary,
     *   or a row outside the tokens.
     */
    internal fun inputs(vocabSize: Int): Map<String, Input> {
        val t = tokens.size
        val r = rows.size
        val m = if (directIds == null) 0 else directIds.size / maxOf(1, r)
        val c = if (chunks == null) 0 else chunks.size / maxOf(1, r)
        within("tokens", tokens, 0, vocabSize)
        label?.let { within("label", it, 0, vocabSize) }
        directIds?.let { within("direct_ids", it, -1, vocabSize) }
        within("rows", rows, 0, t)
        return mapOf(
            "tokens" to ids("tokens", tokens, 1, t),
            "positions" to ids("positions", positions ?: IntArray(t) { it }, 1, t),
            "mask" to numbers("mask", mask ?: FloatArray(t * t) { if (it % t > it / t) MASKED else 0f }, t, t),
            "rows" to ids("rows", rows, r),
            "direct_ids" to ids("direct_ids", directIds, r, m),
            "direct_log_p" to numbers("direct_log_p", directLogP, r, m),
            "direct_weight" to numbers("direct_weight", directWeight, r),
            "direct_tokens" to numbers("direct_tokens", directTokens ?: FloatArray(vocabSize) { 1f }, vocabSize),
            "label" to ids("label", label, r),
            "label_weight" to numbers("label_weight", labelWeight, r),
            "chunks" to numbers("chunks", chunks, c, r),
            "chunk_log_p" to numbers("chunk_log_p", chunkLogP, c),
            "chunk_weight" to numbers("chunk_weight", chunkWeight, c),
            "merged" to numbers("merged", merged, c, r),
            "temperature" to Input(longArrayOf(), numbers = floatArrayOf(temperature)),
        )
    }

    private fun within(name: String, values: IntArray, least: Int, bound: Int) =
        require(values.all { it in least until bound }) { "$name must lie in $least…${bound - 1}" }

    private fun ids(name: String, given: IntArray?, vararg shape: Int): Input {
        val values = given ?: IntArray(size(shape))
        return Input(checked(name, values.size, shape), ids = values)
    }

    private fun numbers(name: String, given: FloatArray?, vararg shape: Int): Input {
        val values = given ?: FloatArray(size(shape))
        return Input(checked(name, values.size, shape), numbers = values)
    }

    private fun checked(name: String, size: Int, shape: IntArray): LongArray {
        require(size == size(shape)) { "$name has $size values for ${shape.contentToString()}" }
        return LongArray(shape.size) { shape[it].toLong() }
    }

    private fun size(shape: IntArray) = shape.fold(1, Math::multiplyExact)
}
