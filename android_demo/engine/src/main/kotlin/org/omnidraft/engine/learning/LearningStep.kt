package org.omnidraft.engine.learning

import org.omnidraft.engine.models.LoraWeights

/** Computes losses of a drafter and the gradients of its LoRA; sums over rows, which add up. */
interface LearningStep {
    /** For each LoRA factor the size that is not the rank: of A `[in, rank]`, of B `[rank, out]`. */
    val loraSizes: Map<String, Int>

    /**
     * Compute losses and gradients.
     *
     * @param lora every factor of [loraSizes], of any rank.
     * @param stop ends it from another thread, with an exception here.
     * @throws Exception [stop], or whatever went wrong.
     */
    fun run(batch: TrainingBatch, lora: LoraWeights, stop: Stop = Stop()): TrainingResult

    /** The drafter's likeliest token of each row, `[R]`, and nothing else; see [run]. */
    fun best(batch: TrainingBatch, lora: LoraWeights, stop: Stop = Stop()): IntArray
}
