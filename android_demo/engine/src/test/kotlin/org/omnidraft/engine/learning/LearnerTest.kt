package org.omnidraft.engine.learning

import java.nio.file.Path
import kotlin.io.path.createFile
import kotlin.io.path.exists
import kotlin.io.path.readBytes
import kotlin.io.path.writeBytes
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.models.LoraWeights

/** An adapter over sessions. */
class LearnerTest {
    @TempDir
    lateinit var temporary: Path

    private val folder get() = temporary.resolve("adapters")
    private val step = ToyStep().apply { slope = 1.0 }
    private val used = ArrayList<LoraWeights?>()

    private fun learner(rank: Int = 2, background: Boolean = false) = Learner(
        AdapterStore(folder), "work", DRAFTER, TARGET, step, RecordedLearning.plain,
        LearningOptions(rank = rank, learningRate = 0.05, interval = 2), background,
        adapt = used::add, ngrams = { byteArrayOf(7) },
    )

    private fun Learner.answer(number: Int, finished: Boolean = true) {
        begin()
        firstToken()
        val text = RecordedLearning.text(number * 11 % 60, number * 11 % 60 + 25)
        for (context in 5..20 step 5) {
            val drafts = text.copyOfRange(context, context + 4)
            observe(shown(context, drafts, intArrayOf(2, 1, 1), 2, 1), text)
        }
        if (finished) end() else abandon()
    }

    @Test
    fun `what is learned comes into use, and is there in the next session`() {
        val promoted = learner().use { learner ->
            repeat(30) { learner.answer(it) }
            learner.progress
        }
        assertTrue(promoted.promotions > 0)
        assertEquals(null, used.first())
        val last = used.last()!!
        used.clear()
        learner(rank = 8).use { learner -> // of an adapter that is there the rank stays
            assertEquals(promoted, learner.progress)
            assertEquals(last.keys, used.single()!!.keys)
            assertArrayEquals(byteArrayOf(7), learner.storedNgrams)
            learner.answer(31)
            assertEquals(promoted.prompts + 1, learner.progress.prompts)
        }
    }

    @Test
    fun `an answer that was broken off, or made while paused, teaches nothing`() {
        learner().use { learner ->
            learner.answer(1, finished = false)
            learner.paused = true
            learner.answer(2)
            assertEquals(0, learner.progress.prompts)
        }
        assertFalse(folder.exists())
    }

    @Test
    fun `a thread learns what waits before the session is finished`() {
        learner(background = true).use { learner ->
            repeat(5) { learner.answer(it) }
            learner.finish()
            assertEquals(5, learner.progress.prompts)
            assertEquals(2, AdapterStore(folder).load("work", DRAFTER, TARGET).metadata.updates)
        }
    }

    @Test
    fun `a damaged file is refused and stays`() {
        learner().use { learner -> repeat(2) { learner.answer(it) } }
        val file = folder.resolve("work.adapter")
        val damaged = file.readBytes().also { it[it.size / 2] = 1 }
        file.writeBytes(damaged)
        assertThrows(DamagedFileException::class.java) { learner() }
        assertArrayEquals(damaged, file.readBytes())
    }

    @Test
    fun `a save that cannot be made says so`() {
        val learner = learner()
        folder.createFile()
        learner.answer(1)
        assertThrows(OmniDraftException::class.java) { learner.answer(2) }
        assertEquals(2, learner.progress.prompts)
    }

    private companion object {
        val DRAFTER = ModelKey("drafter", "0".repeat(64))
        val TARGET = ModelKey("target", "1".repeat(64))
    }
}
