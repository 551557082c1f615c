package org.omnidraft.engine.learning

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.file.Path
import java.util.Base64
import kotlin.io.path.exists
import kotlin.io.path.name
import kotlin.io.path.readText
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.DynamicTest.dynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.omnidraft.engine.Fixtures
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.models.LoraWeights
import org.omnidraft.engine.models.Matrix
import org.omnidraft.engine.models.RecordedPasses

/** What record_learning.py recorded of a training step. */
@Serializable
private class RecordedSteps(
    val rank: Int,
    @SerialName("learning_rate") val learningRate: Double,
    val every: Int,
    val updates: List<Update>,
) {
    @Serializable
    class Update(
        val batches: List<Batch>, val losses: List<List<Float>>, val rows: List<Rows>, val lora: Map<String, String>,
    )

    @Serializable
    class Rows(
        val kl: List<Float>,
        @SerialName("log_label") val logLabel: List<Float>,
        @SerialName("chunk_divergence") val chunkDivergence: List<Float>,
        val best: List<Int>,
        val hidden: String,
    )

    @Serializable
    class Batch(
        val tokens: List<Int>,
        val rows: List<Int>,
        val positions: List<Int>? = null,
        @SerialName("direct_ids") val directIds: List<Int>? = null,
        @SerialName("direct_log_p") val directLogP: List<Float>? = null,
        @SerialName("direct_weight") val directWeight: List<Float>? = null,
        @SerialName("direct_tokens") val directTokens: List<Float>? = null,
        val label: List<Int>? = null,
        @SerialName("label_weight") val labelWeight: List<Float>? = null,
        val chunks: List<Float>? = null,
        @SerialName("chunk_log_p") val chunkLogP: List<Float>? = null,
        @SerialName("chunk_weight") val chunkWeight: List<Float>? = null,
        val merged: List<Float>? = null,
        val temperature: Float,
    ) {
        fun batch() = TrainingBatch(
            tokens.toIntArray(), rows.toIntArray(), positions?.toIntArray(), null, directIds?.toIntArray(),
            directLogP?.toFloatArray(), directWeight?.toFloatArray(), directTokens?.toFloatArray(),
            label?.toIntArray(), labelWeight?.toFloatArray(), chunks?.toFloatArray(), chunkLogP?.toFloatArray(),
            chunkWeight?.toFloatArray(), merged?.toFloatArray(), temperature,
        )
    }

    fun kept(values: FloatArray): FloatArray {
        val step = if (every == 0) 1 else maxOf(1, values.size / every)
        return FloatArray((values.size + step - 1) / step) { values[it * step] }
    }
}

class TrainingStepTest {
    private val drafter = Fixtures.models.resolve("drafter-own")

    @Test
    fun `a small drafter learns what it learns in Python`() =
        compare(drafter, Fixtures.resources.resolve("learning/steps.json"))

    @TestFactory
    fun `real drafters learn what they learn in Python`(): List<DynamicTest> {
        val recorded = Fixtures.folders(Fixtures.realModels())
            .associateWith { it.resolveSibling("${it.name}.steps.json") }.filterValues { it.exists() }
        assertTrue(recorded.isNotEmpty()) { "nothing was recorded: see record_learning.py" }
        return recorded.map { (folder, file) -> dynamicTest(folder.name) { compare(folder, file) } }
    }

    private fun compare(folder: Path, file: Path) {
        val recorded = Json.decodeFromString<RecordedSteps>(file.readText())
        TrainingStep(folder, Fixtures.operators).use { step ->
            var lora: LoraWeights = RecordedPasses.adapter(step.loraSizes, recorded.rank, 3)
            val optimizer = AdamW(lora, recorded.learningRate)
            for (update in recorded.updates) {
                val batches = update.batches.map { it.batch() }
                val results = batches.map { step.run(it, lora) }
                for (index in results.indices) {
                    compare(update, index, results[index], recorded)
                    assertArrayEquals(results[index].best, step.best(batches[index], lora))
                }
                val scale = 1f / batches.sumOf { it.rows.size }
                val gradients = lora.mapValues { (name, weight) ->
                    val (a, b) = results.map { it.gradients.getValue(name).values }
                    Matrix(weight.rows, weight.columns, FloatArray(a.size) { (a[it] + b[it]) * scale })
                }
                lora = optimizer.step(lora, gradients)
                assertEquals(update.lora.keys, lora.keys)
                for ((name, weight) in lora) {
                    assertArrayEquals(floats(update.lora.getValue(name)), recorded.kept(weight.values), 1e-5f, name)
                }
            }
            assertEquals(recorded.updates.size, optimizer.steps)
        }
    }

    private fun compare(update: RecordedSteps.Update, index: Int, result: TrainingResult, recorded: RecordedSteps) {
        val losses = floatArrayOf(result.loss, result.directLoss, result.labelLoss, result.chunkLoss)
        assertArrayEquals(update.losses[index].toFloatArray(), losses, 1e-3f)
        val rows = update.rows[index]
        assertArrayEquals(rows.kl.toFloatArray(), result.kl, 1e-3f)
        assertArrayEquals(rows.logLabel.toFloatArray(), result.logLabel, 1e-3f)
        assertArrayEquals(rows.chunkDivergence.toFloatArray(), result.chunkDivergence, 1e-3f)
        assertArrayEquals(floats(rows.hidden), recorded.kept(result.hidden.values), 1e-3f)
        assertEquals(rows.best, result.best.toList())
    }

    private fun floats(text: String): FloatArray {
        val buffer = ByteBuffer.wrap(Base64.getDecoder().decode(text)).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
        return FloatArray(buffer.remaining()).also(buffer::get)
    }

    @Test
    fun `what does not fit is refused in words`() {
        val missing = assertThrows(ModelNotFoundException::class.java) {
            TrainingStep(Fixtures.models.resolve("drafter-any"), Fixtures.operators)
        }
        assertTrue("--train-step" in missing.message!!)
        TrainingStep(drafter, Fixtures.operators).use { step ->
            val lora = RecordedPasses.adapter(step.loraSizes, 2, 0)
            val batch = TrainingBatch(intArrayOf(1, 2), intArrayOf(0), label = intArrayOf(1), labelWeight = floatArrayOf(1f))
            val name = lora.keys.first()
            val other = name.dropLast(1) + if (name.endsWith("A")) "B" else "A"
            val lacking = assertThrows(OmniDraftException::class.java) { step.run(batch, lora - name - other) }
            assertTrue("learning needs all factors" in lacking.message!!, lacking.message)
            val half = assertThrows(OmniDraftException::class.java) { step.run(batch, lora - name) }
            assertTrue("without its other half" in half.message!!, half.message)
            for (wrong in listOf(
                TrainingBatch(intArrayOf(1, step.vocabSize), intArrayOf(0)),
                TrainingBatch(intArrayOf(1, 2), intArrayOf(2)),
                TrainingBatch(intArrayOf(1, 2), intArrayOf(0), label = intArrayOf(1, 2)),
            )) assertThrows(IllegalArgumentException::class.java) { step.run(wrong, lora) }
            assertTrue(step.run(batch, lora).loss > 0)
        }
    }

    @Test
    fun `a step that was stopped before it began computes nothing, and the next one does`() {
        TrainingStep(drafter, Fixtures.operators).use { step ->
            val lora = RecordedPasses.adapter(step.loraSizes, 2, 0)
            val batch = TrainingBatch(intArrayOf(1, 2), intArrayOf(0), label = intArrayOf(1), labelWeight = floatArrayOf(1f))
            val stop = Stop().apply { now() }
            assertThrows(OmniDraftException::class.java) { step.run(batch, lora, stop) }
            assertThrows(OmniDraftException::class.java) { step.best(batch, lora, stop) }
            val late = Stop()
            val loss = step.run(batch, lora, late).loss
            late.now()
            assertEquals(loss, step.run(batch, lora).loss)
        }
    }
}
