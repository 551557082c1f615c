package org.omnidraft.engine.models

import org.omnidraft.engine.NotEnoughMemoryException

// ONNX Runtime with what it keeps of a graph, and the temporaries of a pass: measured with
// SmolLM2-135M, of which opening and a pass of 1,000 tokens took 174 MB in all.
private const val FIXED = 40L shl 20

// Rows of logits that a round asks for, at most.
private const val ROWS = 64

/**
 * What opening a model takes, in bytes: an estimate.
 *
 * @property weights of the files, which are mapped: under pressure the system can drop them, and
 *   passes then read them again, slowly.
 * @property cache of keys and values for the context, which are taken as it fills.
 * @property working of ONNX Runtime and of passes.
 * @property context the longest sequence, in tokens.
 */
class MemoryNeed internal constructor(
    val weights: Long,
    val cache: Long,
    val working: Long,
    val context: Int,
    private val bytesPerToken: Long,
) {
    /** All of it. */
    val total: Long get() = weights + cache + working

    /**
     * Refuse what does not fit, before it is tried.
     *
     * @param limit bytes there are.
     * @param name what to call the model in words.
     * @throws NotEnoughMemoryException [total] is more than the limit.
     */
    fun check(limit: Long, name: String = "The model") {
        if (total <= limit) return
        val left = (limit - weights - working) / bytesPerToken / LENGTH_STEP * LENGTH_STEP
        val advice = if (left >= LENGTH_STEP) {
            "Choose a context of at most $left tokens, or a smaller model."
        } else {
            "Choose a smaller model, or weights of fewer bits."
        }
        throw NotEnoughMemoryException(
            "$name needs about ${megabytes(total)} (weights ${megabytes(weights)}, keys and values of " +
                "$context tokens ${megabytes(cache)}), and there are ${megabytes(maxOf(0, limit))}. $advice"
        )
    }
}

/**
 * What opening this model takes.
 *
 * @param maxLength as for [OnnxModel].
 */
fun OnnxDescription.memoryNeed(maxLength: Int? = null): MemoryNeed {
    val context = minOf(contextLength, maxLength ?: contextLength)
    return MemoryNeed(
        weights = fileBytes,
        cache = roundUp(context, LENGTH_STEP) * kvBytesPerToken,
        working = FIXED + ROWS * vocabSize * Float.SIZE_BYTES.toLong(),
        context = context,
        bytesPerToken = kvBytesPerToken,
    )
}
