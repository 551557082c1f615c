package org.omnidraft.engine.learning

import java.util.concurrent.CountDownLatch
import java.util.concurrent.Semaphore
import java.util.concurrent.atomic.AtomicInteger
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertSame
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.models.LoraWeights

/** How learning shares the time with answers. */
@Timeout(60)
class WorkerTest {
    /** A step that runs until it is let go or ended, where [held] is set. */
    private class HeldStep : LearningStep {
        private val toy = ToyStep()
        override val loraSizes = toy.loraSizes
        @Volatile var held = true
        @Volatile var error: RuntimeException? = null
        @Volatile var gap = Semaphore(Int.MAX_VALUE) // between its beginning and when it can be ended
        val began = Semaphore(0)
        val ended = AtomicInteger()
        val priorities = HashSet<Int>()

        override fun run(batch: TrainingBatch, lora: LoraWeights, stop: Stop): TrainingResult {
            priorities += Thread.currentThread().priority
            error?.let { throw it }
            if (held) {
                val end = CountDownLatch(1)
                began.release()
                gap.acquire()
                try {
                    stop.ends(end::countDown) { end.await() }
                } finally {
                    ended.incrementAndGet()
                }
                throw IllegalStateException("stopped")
            }
            began.release()
            return toy.run(batch, lora, stop)
        }

        override fun best(batch: TrainingBatch, lora: LoraWeights, stop: Stop) = toy.best(batch, lora, stop)
    }

    private fun prompt(): List<ObservedPrompt> {
        val observations = Observations()
        RecordedLearning.observe(observations, listOf(0, 5, 1, 3, 0, 2, 1))
        RecordedLearning.observe(observations, listOf(0, 8, 1, 3, 0, 1))
        return observations.endPrompt()
    }

    private fun trainer(step: LearningStep, budget: Double = 1.0) = OnlineTrainer(
        step, RecordedLearning.plain, LearningOptions(rank = 2, interval = 1, budget = budget),
        background = true,
    )

    @Test
    fun `a pause ends the step that runs, and it begins anew`() {
        val step = HeldStep()
        trainer(step).use { trainer ->
            trainer.add(prompt())
            step.began.acquire()
            trainer.pause()
            trainer.drain(0.1)
            assertEquals(1, trainer.waiting)
            assertEquals(0, trainer.progress.prompts)
            step.held = false
            trainer.resume()
            trainer.drain()
            assertEquals(1, step.ended.get())
            assertEquals(1, trainer.progress.updates)
            assertTrue(step.priorities.all { it < Thread.NORM_PRIORITY })
        }
    }

    @Test
    fun `a pause in the moment before a step begins is not lost`() {
        val step = HeldStep().apply { gap = Semaphore(0) }
        trainer(step).use { trainer ->
            trainer.add(prompt())
            step.began.acquire()
            trainer.pause()
            step.held = false
            step.gap.release()
            trainer.resume()
            trainer.drain()
            assertEquals(1, step.ended.get())
            assertEquals(1, trainer.progress.updates)
        }
    }

    @Test
    fun `closing ends the step that runs, and forgets what waits`() {
        val step = HeldStep()
        val trainer = trainer(step)
        trainer.add(prompt())
        trainer.add(prompt())
        step.began.acquire()
        trainer.close()
        trainer.drain()
        trainer.add(prompt())
        assertEquals(1, step.ended.get())
        assertEquals(0, trainer.progress.prompts)
        assertNull(trainer.take())
    }

    @Test
    fun `closing ends a pause and a rest`() {
        val step = HeldStep().apply { held = false }
        val resting = trainer(step, budget = 1e-9)
        resting.add(prompt())
        step.began.acquire()
        resting.close()
        val paused = trainer(step)
        paused.pause()
        paused.add(prompt())
        paused.close()
        assertEquals(0, paused.progress.prompts)
    }

    @Test
    fun `of many answers that wait the oldest are left out`() {
        val step = HeldStep()
        trainer(step).use { trainer ->
            trainer.add(prompt())
            step.began.acquire()
            repeat(QUEUE + 3) { trainer.add(prompt()) }
            assertEquals(3, trainer.progress.skipped)
            assertEquals(QUEUE + 1, trainer.waiting)
        }
    }

    @Test
    fun `what ends the thread is told at the next answer`() {
        val step = HeldStep().apply { error = IllegalArgumentException("broken") }
        trainer(step).use { trainer ->
            trainer.add(prompt())
            val told = assertThrows(IllegalArgumentException::class.java) { trainer.drain() }
            assertSame(step.error, told)
            assertThrows(IllegalArgumentException::class.java) { trainer.add(prompt()) }
        }
    }

    @Test
    fun `a budget of nothing learns nothing`() {
        OnlineTrainer(ToyStep(), RecordedLearning.plain, LearningOptions(rank = 2, budget = 0.0)).use {
            it.add(prompt())
            assertEquals(0, it.progress.prompts)
        }
    }

    @Test
    fun `a state that is not whole is refused`() {
        val whole = OnlineTrainer(ToyStep(), RecordedLearning.plain, LearningOptions(rank = 2)).use {
            it.add(prompt())
            it.state()
        }
        val part = TrainerState(whole.lora, whole.arrays - "second.lora.0.q.B", whole.progress)
        val told = assertThrows(DamagedFileException::class.java) {
            OnlineTrainer(ToyStep(), RecordedLearning.plain, LearningOptions(rank = 2), part)
        }
        assertTrue("second.lora.0.q.B" in told.message!!)
    }
}
