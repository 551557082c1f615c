package org.omnidraft.engine.learning

import kotlin.random.Random
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotEquals
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.omnidraft.engine.Fixtures

/** A real training step on a thread that is paused over and over. */
class InterruptedLearningTest {
    private val options = LearningOptions(rank = 4, interval = 2)

    private fun prompts(): List<List<ObservedPrompt>> {
        val random = Random(3)
        return List(10) {
            val observations = Observations()
            val begin = random.nextInt(50)
            for (context in 200..260 step 6) {
                val counts = listOf(1, 2, 1)
                val accepted = random.nextInt(4)
                val words = listOf(begin, context, accepted, 1 + random.nextInt(6), 0) + counts
                RecordedLearning.observe(observations, words)
            }
            observations.endPrompt()
        }
    }

    private fun step() =
        TrainingStep(Fixtures.models.resolve("drafter-own"), Fixtures.operators, threads = 1)

    @Test
    @Timeout(300)
    fun `pauses change nothing of what is learned`() {
        val expected = step().use { step ->
            OnlineTrainer(step, RecordedLearning.plain, options).use { trainer ->
                prompts().forEach(trainer::add)
                trainer.state()
            }
        }
        assertEquals(5, expected.progress.updates)
        assertNotEquals(0f, expected.arrays.filterKeys { it.startsWith("candidate.") && it.endsWith(".B") }
            .values.maxOf { it.values.max() })
        step().use { step ->
            OnlineTrainer(step, RecordedLearning.plain, options, background = true).use { trainer ->
                prompts().forEach(trainer::add)
                repeat(200) {
                    trainer.pause()
                    trainer.resume()
                    if (it % 4 == 0) trainer.drain(0.001)
                }
                trainer.drain()
                val state = trainer.state()
                assertEquals(expected.arrays, state.arrays)
                assertEquals(expected.progress.copy(seconds = 0.0), state.progress.copy(seconds = 0.0))
            }
        }
    }
}
