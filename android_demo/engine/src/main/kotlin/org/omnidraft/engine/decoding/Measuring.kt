package org.omnidraft.engine.decoding

import kotlin.math.min
import org.omnidraft.engine.core.Costs
import org.omnidraft.engine.models.CausalModel

// The most telling first: a slow model has time for a few of them only.
internal val SIZES = listOf(1, 8, 2, 4, 16, 32, 3, 6, 12, 24)
private const val MEASURED_CONTEXT = 128
private const val TURNS = 7
private const val QUANTILE = 0.3

/** The smallest of the bands of context for which the core keeps costs, in tokens. */
private const val BAND = 256

/** What passes of two models cost on this machine; measured in a second or two. */
fun measureCosts(target: CausalModel, drafter: CausalModel): Costs =
    Costs(mapOf(BAND to measurePasses(target, 1.2)), measurePasses(drafter, 0.4, rows = 1))

/**
 * Time passes of a model; its KV cache holds afterwards what it held.
 *
 * Measured times are noisy, and hiccups make them longer, never shorter: a low quantile of several
 * turns is taken.
 *
 * @param budget seconds after which no further pass is begun, once the first two sizes were timed.
 * @param rows rows of logits that are asked for; null: all.
 * @return seconds by the number of tokens.
 * @throws IllegalArgumentException the model's context is full.
 */
fun measurePasses(model: CausalModel, budget: Double, rows: Int? = null): Map<Int, Double> {
    val start = model.length
    val room = model.maxLength - start
    require(room >= 1) { "no room in the model's context to time a pass" }
    val sizes = SIZES.filter { it <= room }
    val times = sizes.associateWith { ArrayList<Double>() }
    val token = min(1, model.vocabSize - 1)
    val began = System.nanoTime()
    try {
        val filler = min(MEASURED_CONTEXT - start, room - sizes.max())
        if (filler > 0) model.forward(IntArray(filler) { token }, rows = 1)
        val base = model.length
        // In turns, so that a slow moment falls on all sizes alike.
        for (turn in 0..TURNS) for ((order, size) in sizes.withIndex()) {
            if ((System.nanoTime() - began) / 1e9 > budget && (turn > 0 || order > 1)) break
            val before = System.nanoTime()
            model.forward(IntArray(size) { token }, rows ?: size)
            times.getValue(size) += (System.nanoTime() - before) / 1e9
            model.truncate(base)
        }
    } finally {
        model.truncate(start)
    }
    return times.filterValues { it.isNotEmpty() }.mapValues { (_, taken) ->
        // The first pass of a size makes its buffers.
        quantile((if (taken.size > 1) taken.drop(1) else taken).sorted())
    }
}

private fun quantile(sorted: List<Double>): Double {
    val at = QUANTILE * (sorted.size - 1)
    val low = at.toInt()
    val next = sorted[min(low + 1, sorted.size - 1)]
    return sorted[low] + (at - low) * (next - sorted[low])
}
