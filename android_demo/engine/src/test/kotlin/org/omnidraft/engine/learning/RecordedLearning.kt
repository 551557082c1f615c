package org.omnidraft.engine.learning

import org.omnidraft.engine.core.Shown
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.io.path.readText
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.omnidraft.engine.Fixtures
import org.omnidraft.engine.models.LoraWeights
import org.omnidraft.engine.models.Matrix

/** `tests/vectors/learning.json`, which its README.md describes. */
@Serializable
class RecordedLearning(
    val observations: List<Observation>,
    val trials: List<Decisions>,
    val training: Training,
) {
    @Serializable
    class Observation(@SerialName("max_bytes") val maxBytes: Long, val answers: List<Answer>)

    @Serializable
    class Answer(
        val rounds: List<List<Int>>,
        val discarded: Boolean,
        val kept: List<Long>,
        val parts: List<List<Long>> = emptyList(),
        val batches: List<Batch> = emptyList(),
    )

    @Serializable
    class Batch(
        val shapes: Map<String, List<Int>>,
        val sha256: Map<String, String>,
        val values: Map<String, List<Float>> = emptyMap(),
    )

    @Serializable
    class Decisions(
        val interval: Int,
        val answers: List<List<Int>>,
        val decisions: String,
        val progress: Progress,
    )

    @Serializable
    class Training(
        val untrained: Map<String, List<Float>>,
        val phases: List<Phase>,
        val lora: Map<String, List<Float>>,
        val state: Map<String, List<Float>>,
        val progress: Progress,
    )

    @Serializable
    class Phase(val slope: Double, val scale: String, val answers: List<Prompt>)

    @Serializable
    class Prompt(
        val rounds: List<List<Int>>,
        val taken: Int?,
        val counts: List<Int>,
        val sums: List<Double>,
    )

    companion object {
        const val VOCABULARY = 97

        /** Of each target token, whether it has a surface. */
        val plain = BooleanArray(40) { it % 7 != 0 }

        val all: RecordedLearning by lazy {
            Json.decodeFromString(Fixtures.root.resolve("tests/vectors/learning.json").readText())
        }

        /** The token that follows in the endless text. */
        fun following(token: Int): Int = (5 * token + 3) % VOCABULARY

        /** What stands at these places of the endless text. */
        fun text(begin: Int, end: Int): IntArray =
            generateSequence(1, ::following).take(end).drop(begin).toList().toIntArray()

        /** Show a round of the text. */
        fun observe(observations: Observations, words: List<Int>) {
            val (begin, context, accepted, last, unfinished) = words
            val counts = words.drop(5)
            val stood = counts.take(accepted).sum()
            val left = IntArray(counts.sum() + unfinished - stood)
            // What is settled of a round stands in its context, too, by the time that it is shown.
            val history = text(begin, begin + context + stood)
            val drafts = history.copyOfRange(context, context + stood) + left
            observations.observe(
                shown(context, drafts, counts.toIntArray(), accepted, last), history,
            )
        }

        fun matrices(values: Map<String, List<Float>>): LoraWeights = values.mapValues { (name, list) ->
            val array = list.toFloatArray()
            if (name.endsWith(".A")) Matrix(array.size / 2, 2, array) else Matrix(2, array.size / 2, array)
        }
    }
}

/** Integers as Python keeps them, in int64. */
fun IntArray.bytes(): ByteArray {
    val bytes = ByteBuffer.allocate(size * 8).order(ByteOrder.LITTLE_ENDIAN)
    forEach { bytes.putLong(it.toLong()) }
    return bytes.array()
}

fun FloatArray.bytes(): ByteArray {
    val bytes = ByteBuffer.allocate(size * 4).order(ByteOrder.LITTLE_ENDIAN)
    forEach(bytes::putFloat)
    return bytes.array()
}

/** A step of known gradients, as `ToyStep` of record_learning.py. */
class ToyStep : LearningStep {
    override val loraSizes = mapOf("lora.0.q.A" to 3, "lora.0.q.B" to 2)
    var slope = 0.0
    var scale = 1.0

    override fun run(batch: TrainingBatch, lora: LoraWeights, stop: Stop): TrainingResult {
        val weight = (batch.labelWeight!!.sum() * scale).toFloat()
        val gradients = lora.mapValues { (_, w) ->
            Matrix(w.rows, w.columns, FloatArray(w.values.size) { weight * (w.values[it] - 1f) })
        }
        val none = FloatArray(0)
        return TrainingResult(
            0f, 0f, 0f, 0f, none, none, none, Matrix(0, 0), best(batch, lora), gradients,
        )
    }

    override fun best(batch: TrainingBatch, lora: LoraWeights, stop: Stop): IntArray {
        val bound = 0.5 + slope * lora.getValue("lora.0.q.B").values.sumOf { it.toDouble() } / 4
        return IntArray(batch.rows.size) {
            val token = batch.tokens[batch.rows[it]]
            val place = (7 * token % RecordedLearning.VOCABULARY).toDouble() / RecordedLearning.VOCABULARY
            if (place < bound) RecordedLearning.following(token) else -1
        }
    }
}

/** A path of a round as the core shows it, with what learning does not look at left empty. */
internal fun shown(context: Int, drafts: IntArray, counts: IntArray, accepted: Int, last: Int) = Shown(
    context, IntArray(counts.size), drafts, counts, accepted, last, IntArray(counts.size + 1), IntArray(0),
)
