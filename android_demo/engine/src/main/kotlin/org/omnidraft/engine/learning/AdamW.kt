package org.omnidraft.engine.learning

import kotlin.math.pow
import kotlin.math.sqrt
import org.omnidraft.engine.models.LoraWeights
import org.omnidraft.engine.models.Matrix

/**
 * Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2), as `torch.optim.AdamW`.
 *
 * @param weights whose shapes the running means have.
 * @property steps made so far.
 * @property first running means of gradients, for each weight.
 * @property second running means of their squares.
 */
class AdamW(
    weights: LoraWeights,
    var learningRate: Double,
    private val beta1: Double = 0.9,
    private val beta2: Double = 0.999,
    private val epsilon: Double = 1e-8,
    private val weightDecay: Double = 0.01,
) {
    var steps = 0
    var first: LoraWeights = weights.mapValues { (_, w) -> Matrix(w.rows, w.columns) }
    var second: LoraWeights = first

    /** The weights after a step; arrays that were there before stay as they are. */
    fun step(weights: LoraWeights, gradients: LoraWeights): LoraWeights {
        val count = steps + 1
        val size = (learningRate / (1 - beta1.pow(count))).toFloat()
        val correction = (1 / sqrt(1 - beta2.pow(count))).toFloat()
        val decay = (1 - learningRate * weightDecay).toFloat()
        val small = epsilon.toFloat()
        val part1 = (1 - beta1).toFloat()
        val part2 = (1 - beta2).toFloat()
        val firsts = first.mapValues { it.value.copy() }
        val seconds = second.mapValues { it.value.copy() }
        val new = weights.mapValues { (name, weight) ->
            val gradient = gradients.getValue(name).values
            val m = firsts.getValue(name).values
            val v = seconds.getValue(name).values
            val values = FloatArray(gradient.size) { i ->
                val g = gradient[i]
                m[i] += part1 * (g - m[i])
                v[i] += part2 * (g * g - v[i])
                decay * weight.values[i] - size * m[i] / (sqrt(v[i]) * correction + small)
            }
            Matrix(weight.rows, weight.columns, values)
        }
        first = firsts
        second = seconds
        steps = count
        return new
    }
}
