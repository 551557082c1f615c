package org.omnidraft.engine.learning

import ai.onnxruntime.OnnxTensor
import java.nio.FloatBuffer
import java.nio.LongBuffer
import org.omnidraft.engine.models.environment

/** Added to an attention score, it hides a position. */
internal const val MASKED = -1e30f

/** ALM's temperature, which the graph asks for whatever the loss. */
private const val TEMPERATURE = 100f

/**
 * Tokens, and what is to be learned at some of their positions: T positions, R rows.
 *
 * @property tokens `[T]` draft tokens.
 * @property rows `[R]` indices of positions whose next-token distributions carry loss; one may occur
 *   several times.
 * @property positions `[T]` places in the sequence.
 * @property mask `[T, T]`, added to the attention's scores: 0 where row t may see column s, a large
 *   negative number elsewhere.
 * @property label `[R]` the draft token that came after each row.
 * @property labelWeight `[R]` weight of −log q(label).
 */
class TrainingBatch(
    val tokens: LongArray,
    val rows: LongArray,
    val positions: LongArray,
    val mask: FloatArray,
    val label: LongArray = LongArray(rows.size),
    val labelWeight: FloatArray = FloatArray(rows.size),
) {
    /**
     * The inputs of the training graph beside the LoRA's, by name; those of other losses are empty or
     * weigh nothing. Whoever asks closes them.
     *
     * @param vocabSize of the drafter.
     * @throws IllegalArgumentException a token lies outside the vocabulary, a row outside the tokens,
     *   or a size disagrees.
     */
    fun tensors(vocabSize: Int): Map<String, OnnxTensor> {
        val count = tokens.size
        demand("tokens", tokens, vocabSize)
        demand("label", label, vocabSize)
        demand("rows", rows, count)
        require(positions.size == count && mask.size == count * count) {
            "${positions.size} positions and a mask of ${mask.size} for $count tokens"
        }
        require(label.size == rows.size && labelWeight.size == rows.size) {
            "${label.size} labels and ${labelWeight.size} weights for ${rows.size} rows"
        }
        val made = LinkedHashMap<String, OnnxTensor>()
        fun longs(name: String, values: LongArray, vararg shape: Int) {
            made[name] = OnnxTensor.createTensor(environment, LongBuffer.wrap(values), long(shape))
        }
        fun floats(name: String, values: FloatArray, vararg shape: Int) {
            made[name] = OnnxTensor.createTensor(environment, FloatBuffer.wrap(values), long(shape))
        }
        try {
            longs("tokens", tokens, 1, count)
            longs("positions", positions, 1, count)
            floats("mask", mask, count, count)
            longs("rows", rows, rows.size)
            longs("direct_ids", LongArray(0), rows.size, 0)
            floats("direct_log_p", FloatArray(0), rows.size, 0)
            floats("direct_weight", FloatArray(rows.size), rows.size)
            floats("direct_tokens", FloatArray(vocabSize) { 1f }, vocabSize)
            longs("label", label, rows.size)
            floats("label_weight", labelWeight, rows.size)
            floats("chunks", FloatArray(0), 0, rows.size)
            floats("chunk_log_p", FloatArray(0), 0)
            floats("chunk_weight", FloatArray(0), 0)
            floats("merged", FloatArray(0), 0, rows.size)
            floats("temperature", floatArrayOf(TEMPERATURE))
        } catch (error: Throwable) {
            made.values.forEach(OnnxTensor::close)
            throw error
        }
        return made
    }

    private fun demand(name: String, values: LongArray, bound: Int) = require(
        values.all { it in 0 until bound }
    ) { "$name must lie in 0…${bound - 1}" }

    private fun long(shape: IntArray) = LongArray(shape.size) { shape[it].toLong() }
}
