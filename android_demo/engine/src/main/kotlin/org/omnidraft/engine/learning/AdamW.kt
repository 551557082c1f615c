package org.omnidraft.engine.learning

import kotlin.math.pow
import kotlin.math.sqrt
import org.omnidraft.engine.models.LoraWeights
import org.omnidraft.engine.models.Matrix

/**
 * Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2), in float32 as in Python.
 *
 * @param weights what is learnt, for its names and shapes.
 * @property learningRate of the next step.
 */
class AdamW(
    weights: LoraWeights,
    var learningRate: Double,
    private val beta1: Double = 0.9,
    private val beta2: Double = 0.999,
    private val epsilon: Double = 1e-8,
    private val weightDecay: Double = 0.01,
) {
    /** Steps made so far. */
    var steps = 0

    /** Running means of gradients, for each weight. */
    var first: LoraWeights = weights.mapValues { (_, it) -> Matrix(it.rows, it.columns) }

    /** Running means of the squares of gradients, for each weight. */
    var second: LoraWeights = weights.mapValues { (_, it) -> Matrix(it.rows, it.columns) }

    /**
     * Make a step.
     *
     * @param gradients of every weight.
     * @return new weights; [weights] are left alone.
     */
    fun step(weights: LoraWeights, gradients: LoraWeights): LoraWeights {
        val count = steps + 1
        val size = (learningRate / (1 - beta1.pow(count))).toFloat()
        val correction = (1 / sqrt(1 - beta2.pow(count))).toFloat()
        val decay = (1 - learningRate * weightDecay).toFloat()
        val pace1 = (1 - beta1).toFloat()
        val pace2 = (1 - beta2).toFloat()
        val least = epsilon.toFloat()
        val new = HashMap<String, Matrix>()
        val firsts = HashMap<String, Matrix>()
        val seconds = HashMap<String, Matrix>()
        for ((name, weight) in weights) {
            val gradient = gradients.getValue(name).values
            val m = first.getValue(name).values.copyOf()
            val v = second.getValue(name).values.copyOf()
            val values = FloatArray(m.size) { i ->
                m[i] += pace1 * (gradient[i] - m[i])
                v[i] += pace2 * (gradient[i] * gradient[i] - v[i])
                decay * weight.values[i] - size * m[i] / (sqrt(v[i]) * correction + least)
            }
            fun shaped(numbers: FloatArray) = Matrix(weight.rows, weight.columns, numbers)
            new[name] = shaped(values)
            firsts[name] = shaped(m)
            seconds[name] = shaped(v)
        }
        first = firsts
        second = seconds
        steps = count
        return new
    }
}
