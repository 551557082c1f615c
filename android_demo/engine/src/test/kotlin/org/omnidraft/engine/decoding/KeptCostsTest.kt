package org.omnidraft.engine.decoding

import java.nio.file.Path
import kotlin.io.path.exists
import kotlin.io.path.readText
import kotlin.io.path.writeText
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.core.CoreFixture
import org.omnidraft.engine.core.Costs
import org.omnidraft.engine.core.RecordedAnswer
import org.omnidraft.engine.core.ToyModel

class KeptCostsTest {
    @TempDir
    lateinit var folder: Path
    private val file get() = folder.resolve("costs/pair.json")
    private var measured = 0

    private fun open() = KeptCosts.open(file) {
        measured++
        Costs(mapOf(256 to mapOf(1 to 0.01, 32 to 0.05)), mapOf(1 to 0.001))
    }

    @Test
    fun `they are measured once`() {
        open().use { it.save() }
        open().use { kept ->
            assertEquals(0.01, kept.costs.targetSeconds(256, 1))
            assertEquals(0.05, kept.costs.targetSeconds(256, 32), 1e-12)
            assertEquals(0.001, kept.costs.drafterSeconds(1))
            assertFalse(kept.costs.hasMoved)
        }
        assertEquals(1, measured)
    }

    @Test
    fun `what cannot be read is measured again`() {
        open().use { it.save() }
        val whole = file.readText()
        val damaged = listOf(
            "", "{", whole.dropLast(9), whole.replace("0.01", "-1"), whole.replace("\"schema_version\": 1", "\"schema_version\": 2"),
            whole.replace("256", "255"), "x".repeat(100_000),
        )
        for ((i, text) in damaged.withIndex()) {
            file.writeText(text)
            open().close()
            assertEquals(i + 2, measured, text.take(80))
        }
    }

    @Test
    fun `a place that cannot be written is named`() {
        folder.resolve("costs").writeText("no folder")
        open().use { kept ->
            val error = assertThrows(OmniDraftException::class.java) { kept.save() }
            assertTrue("costs cannot be made" in error.message!!, error.message)
            assertTrue(kept.costs.hasMoved)
        }
        KeptCosts.open(null) { Costs(mapOf(256 to mapOf(1 to 1.0)), mapOf(1 to 1.0)) }.use { it.save() }
        assertFalse(file.exists())
    }

    @Test
    fun `measuring leaves a model as it was`() {
        val world = RecordedAnswer.all().first().world()
        val model = ToyModel(world, true, 200)
        model.forward(intArrayOf(0, 1))
        val seconds = measurePasses(model, budget = 0.05)
        assertEquals(listOf(0, 1), model.held.toList())
        assertTrue(1 in seconds && 8 in seconds && seconds.values.all { it > 0 })
        val short = ToyModel(world, true, 6)
        assertEquals(setOf(1, 2, 3, 4, 6), measurePasses(short, budget = 5.0).keys)
        short.forward(IntArray(6) { 0 })
        assertThrows(IllegalArgumentException::class.java) { measurePasses(short, budget = 1.0) }
        measureCosts(model, ToyModel(world, false, 50)).use { assertTrue(it.hasMoved) }
    }

    private companion object {
        init {
            CoreFixture.load()
        }
    }
}
