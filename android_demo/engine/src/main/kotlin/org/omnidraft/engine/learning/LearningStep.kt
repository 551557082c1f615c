package org.omnidraft.engine.learning

import org.omnidraft.engine.models.LoraWeights

/** Computes a loss of the drafter and the gradients of its LoRA; sums over rows, which add up. */
interface LearningStep {
    /** For every LoRA factor the size that is not the rank. */
    val sizes: Map<String, Int>

    /**
     * Compute loss and gradients.
     *
     * @param lora every factor of [sizes], of one rank.
     * @param termination ends the computation with any exception, see [Termination.during].
     */
    fun run(batch: TrainingBatch, lora: LoraWeights, termination: Termination): StepResult

    /** The drafter's likeliest token of each row, `[R]`, and nothing else; see [run]. */
    fun best(batch: TrainingBatch, lora: LoraWeights, termination: Termination): LongArray
}

/**
 * What a step computed.
 *
 * @property loss a weighted sum, in nats.
 * @property best `[R]` the drafter's likeliest token of each row.
 * @property gradients of [loss], for each LoRA factor.
 */
class StepResult(val loss: Float, val best: LongArray, val gradients: LoraWeights)

/** The wish to end a computation early, which another thread may have. */
class Termination {
    private var end: (() -> Unit)? = null

    /** Whether the computation is to end. */
    @get:Synchronized
    var requested = false
        private set

    /** End the computation, now or as soon as it begins. */
    @Synchronized
    fun request() {
        requested = true
        end?.invoke()
    }

    /**
     * Compute something that can be ended.
     *
     * @param end ends it: it is called while [block] runs or before, never afterwards, and must be
     *   quick. Of ONNX Runtime, `setTerminate(true)` of its `RunOptions`.
     */
    fun <T> during(end: () -> Unit, block: () -> T): T {
        synchronized(this) {
            this.end = end
            if (requested) end()
        }
        try {
            return block()
        } finally {
            synchronized(this) { this.end = null }
        }
    }
}
