package org.omnidraft.engine.learning

import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.omnidraft.engine.files.sha256
import org.omnidraft.engine.models.LoraWeights

/** What Python decided and computed in the same lives. */
class RecordedLearningTest {
    @TestFactory
    fun `the same rounds are kept, and make the same batches`() =
        RecordedLearning.all.observations.mapIndexed { index, recorded ->
            DynamicTest.dynamicTest("life $index") { replay(recorded) }
        }

    private fun replay(recorded: RecordedLearning.Observation) {
        val observations = Observations(recorded.maxBytes)
        for (answer in recorded.answers) {
            for (words in answer.rounds) RecordedLearning.observe(observations, words)
            if (answer.discarded) {
                observations.discardPrompt()
            } else {
                val parts = observations.endPrompt()
                val figures = parts.map {
                    listOf(it.rounds.size.toLong(), it.accepted.toLong(), it.proposed.toLong(), it.bytes)
                }
                assertEquals(answer.parts, figures)
                val made = batches(parts, RecordedLearning.plain).toList()
                assertEquals(answer.batches.size, made.size)
                answer.batches.zip(made).forEach { (expected, batch) -> compare(expected, batch) }
            }
            assertEquals(answer.kept, listOf(observations.prompts.size.toLong(), observations.bytes))
        }
    }

    private fun compare(expected: RecordedLearning.Batch, made: LearningBatch) {
        val inputs = made.training.inputs(RecordedLearning.VOCABULARY)
        val content = inputs.mapValues { (_, input) -> input.ids?.bytes() ?: input.numbers!!.bytes() } +
            ("answer_rows" to made.answerRows.bytes()) + ("answer" to made.answer.bytes())
        val shapes = inputs.mapValues { (_, input) -> input.shape.map { it.toInt() } } +
            ("answer_rows" to listOf(made.answerRows.size)) + ("answer" to listOf(made.answer.size))
        assertEquals(expected.shapes, shapes)
        for ((name, values) in expected.values) assertEquals(values, numbers(name, content), name)
        for ((name, digest) in expected.sha256) {
            assertEquals(digest, sha256(content.getValue(name)).take(digest.length), name)
        }
    }

    private fun numbers(name: String, content: Map<String, ByteArray>): List<Float> {
        val bytes = ByteBuffer.wrap(content.getValue(name)).order(ByteOrder.LITTLE_ENDIAN)
        return if (name == "label_weight") List(bytes.remaining() / 4) { bytes.getFloat() }
        else List(bytes.remaining() / 8) { bytes.getLong().toFloat() }
    }

    @TestFactory
    fun `candidates are trusted and given up alike`() =
        RecordedLearning.all.trials.mapIndexed { index, recorded ->
            DynamicTest.dynamicTest("life $index") { replay(recorded) }
        }

    private fun replay(recorded: RecordedLearning.Decisions) {
        val progress = Progress()
        var used = false
        val decisions = StringBuilder()
        for ((gain, lead, compared, accepted, proposed) in recorded.answers) {
            progress.watch(accepted, proposed)
            decisions.append('-')
            if (progress.stopped) continue
            if (progress.steps > 0) progress.trial.add(gain, compared)
            if (used) progress.defence.add(lead, compared)
            progress.prompts += 1
            progress.pending += 1
            if (progress.pending < recorded.interval) continue
            val decision = progress.decide(used)
            decisions.setCharAt(decisions.length - 1, decision.name.first())
            if (decision == Decision.STEP || decision == Decision.PROMOTE) {
                progress.stepped(progress.steps + 1)
            }
            used = decision == Decision.PROMOTE || used && decision != Decision.WITHDRAW
        }
        assertEquals(recorded.decisions, decisions.toString())
        compare(recorded.progress, progress)
    }

    /** The same counts, and figures to within what the order of a sum makes. */
    private fun compare(expected: Progress, progress: Progress) {
        assertEquals(expected.level, progress.level, 1e-12)
        assertEquals(expected.recent.size, progress.recent.size)
        for ((one, other) in listOf(
            expected.trial to progress.trial, expected.defence to progress.defence,
        )) {
            assertEquals(one.gain, other.gain, 1e-9)
            assertEquals(one.squares, other.squares, 1e-9)
            assertEquals(one.tokens, other.tokens, 1e-9)
            assertEquals(one.prompts, other.prompts)
        }
        fun counts(of: Progress) = of.copy(
            trial = Trial(), defence = Trial(), level = 0.0, recent = emptyList(), seconds = 0.0,
        )
        assertEquals(counts(expected), counts(progress))
    }

    @Test
    fun `a trainer learns the same weights, also from where it was saved`() {
        val recorded = RecordedLearning.all.training
        val step = ToyStep()
        val options = LearningOptions(rank = 2, learningRate = 0.05, interval = 2)
        val observations = Observations()
        var state = TrainerState.none()
        recorded.phases.forEachIndexed { place, phase ->
            step.slope = phase.slope
            step.scale = when (phase.scale) {
                "nan" -> Double.NaN
                "inf" -> Double.POSITIVE_INFINITY
                else -> phase.scale.toDouble()
            }
            OnlineTrainer(
                step, RecordedLearning.plain, options, state,
                untrained = RecordedLearning.matrices(recorded.untrained),
            ).use { trainer ->
                phase.answers.forEachIndexed { number, expected ->
                    for (words in expected.rounds) RecordedLearning.observe(observations, words)
                    trainer.add(observations.endPrompt())
                    assertEquals(expected.taken, trainer.take()?.size, "phase $place, answer $number")
                    state = trainer.state()
                    assertEquals(expected.counts, counts(state.progress), "phase $place, answer $number")
                    val candidate = state.arrays.filterKeys { it.startsWith("candidate.") }
                    assertEquals(expected.sums[0], sum(state.lora), 1e-6)
                    assertEquals(expected.sums[1], sum(candidate), 1e-6)
                }
            }
        }
        compare(recorded.lora, state.lora)
        compare(recorded.state, state.arrays)
        compare(recorded.progress, state.progress)
    }

    private fun counts(of: Progress) = listOf(
        of.prompts, of.updates, of.promotions, of.rollbacks, of.withdrawals, of.failures, of.pending,
        of.steps, if (of.stopped) 1 else 0,
    )

    private fun sum(weights: LoraWeights) = weights.values.sumOf { m -> m.values.sumOf { it.toDouble() } }

    private fun compare(expected: Map<String, List<Float>>, weights: LoraWeights) {
        assertEquals(expected.keys, weights.keys)
        for ((name, values) in expected) {
            assertArrayEquals(values.toFloatArray(), weights.getValue(name).values, 1e-6f, name)
        }
    }
}
