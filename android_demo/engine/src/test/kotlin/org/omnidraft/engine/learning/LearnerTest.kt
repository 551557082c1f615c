package org.omnidraft.engine.learning

import java.nio.file.Path
import java.util.zip.CRC32
import kotlin.io.path.createFile
import kotlin.io.path.exists
import kotlin.io.path.readBytes
import kotlin.io.path.writeBytes
import kotlin.random.Random
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
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
import org.omnidraft.engine.models.Matrix

/** An adapter over sessions. */
class LearnerTest {
    @TempDir
    lateinit var temporary: Path

    private val folder get() = temporary.resolve("adapters")
    private val step = ToyStep().apply { slope = 1.0 }
    private val used = ArrayList<LoraWeights?>()

    /** JSON behind its checksum. */
    private object Format : AdapterFormat {
        @Serializable
        private class Array(val rows: Int, val columns: Int, val values: List<Float>)

        @Serializable
        private class File(
            val lora: Map<String, Array>,
            val arrays: Map<String, Array>,
            val progress: Progress,
            val ngrams: List<Byte>,
        )

        override fun write(learned: Learned): ByteArray {
            fun plain(weights: LoraWeights) =
                weights.mapValues { (_, m) -> Array(m.rows, m.columns, m.values.toList()) }
            val state = learned.state
            val text = Json.encodeToString(
                File(plain(state.lora), plain(state.arrays), state.progress, learned.ngrams.toList()),
            )
            return "${checksum(text)} $text".encodeToByteArray()
        }

        override fun read(content: ByteArray): Learned {
            val (sum, text) = content.decodeToString().split(' ', limit = 2) + ""
            if (sum != checksum(text)) throw DamagedFileException("it fails its checksum")
            fun matrices(arrays: Map<String, Array>) =
                arrays.mapValues { (_, a) -> Matrix(a.rows, a.columns, a.values.toFloatArray()) }
            val file = Json.decodeFromString<File>(text)
            val state = TrainerState(matrices(file.lora), matrices(file.arrays), file.progress)
            return Learned(state, file.ngrams.toByteArray())
        }

        private fun checksum(text: String) =
            CRC32().apply { update(text.encodeToByteArray()) }.value.toString()
    }

    private fun learner(rank: Int = 2, background: Boolean = false) = Learner(
        AdapterFolder(folder), "work", Format, step, RecordedLearning.plain,
        LearningOptions(rank = rank, learningRate = 0.05, interval = 2), background,
        adapt = used::add, ngrams = { byteArrayOf(7) },
    )

    private fun Learner.answer(number: Int, finished: Boolean = true) {
        begin()
        firstToken()
        val text = RecordedLearning.text(number * 11 % 60, number * 11 % 60 + 25)
        for (context in 5..20 step 5) {
            val drafts = text.copyOfRange(context, context + 4)
            observe(Shown(context, drafts, intArrayOf(2, 1, 1), 2, 1), text)
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
            assertEquals(2, Format.read(folder.resolve("work.adapter").readBytes()).state.progress.updates)
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
        val told = assertThrows(OmniDraftException::class.java) { learner.answer(2) }
        assertTrue("cannot be saved" in told.message!!, told.message)
        assertThrows(OmniDraftException::class.java) { AdapterFolder(temporary).file("../work") }
    }

    /** More of them by `-Dkills=200`. */
    @Test
    fun `killed while it saves, it leaves a whole file`() {
        val kills = Integer.getInteger("kills", 3)
        val torn = KilledSaves.kill(folder, kills, Random(kills))
        println("$kills kills, $torn of them half-way through a save")
    }
}
