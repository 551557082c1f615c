package org.omnidraft.engine.models

import ai.onnxruntime.OrtSession.SessionOptions.OptLevel
import java.nio.file.Path
import kotlin.io.path.exists
import kotlin.io.path.name
import kotlin.random.Random
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.junit.jupiter.api.io.TempDir
import org.omnidraft.engine.AnswerOptions
import org.omnidraft.engine.ContextOverflowException
import org.omnidraft.engine.Engine
import org.omnidraft.engine.EngineOptions
import org.omnidraft.engine.Fixtures
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.files.Bundle
import org.omnidraft.engine.text.Message

/** Drafters for NPUs: their graphs before they were compiled, and compiled ones in emulation. */
class StaticModelTest {
    @TempDir
    lateinit var scratch: Path

    private val folder: Path = Fixtures.resources.resolve("static")

    private fun open(): StaticModel = StaticModel(
        listOf(1, 8).associateWith {
            // Optimizations would fuse quantized nodes into others that compute something else.
            val options = passOptions(1).apply { setOptimizationLevel(OptLevel.NO_OPT) }
            OnnxSession(folder.resolve("decoder_$it.onnx"), null, options)
        },
        CacheMemory.direct,
    )

    @Test
    fun `a small model computes what Python computes`() {
        val run = RecordedPasses.of(folder).single()
        open().use { run.replay(it, loraSizes(folder.resolve("decoder_1.onnx"))) }
    }

    @Test
    fun `tokens that were taken back leave no trace`() {
        val random = Random(7)
        open().use { wandering ->
            open().use { straight ->
                val texts = List(6) { IntArray(1 + random.nextInt(12)) { random.nextInt(straight.vocabSize) } }
                for (text in texts) {
                    repeat(random.nextInt(3)) {
                        wandering.forward(IntArray(1 + random.nextInt(20)) { random.nextInt(straight.vocabSize) })
                        wandering.truncate(straight.length)
                    }
                    // Passes of the same sizes: a quantized graph's numbers depend on them.
                    val (expected, found) = listOf(straight, wandering).map { model ->
                        model.forward(text, text.size).let { row -> FloatArray(row.remaining()).also(row::get) }
                    }
                    assertArrayEquals(expected, found)
                }
                wandering.truncate(0)
                straight.setAdapter(null)
                assertArrayEquals(straight.held, wandering.held)
            }
        }
    }

    @Test
    fun `what does not fit is refused, and nothing changes`() = open().use { model ->
        model.forward(intArrayOf(5, 6, 7))
        assertThrows(ContextOverflowException::class.java) { model.forward(IntArray(94) { 4 }) }
        assertThrows(IllegalArgumentException::class.java) { model.forward(intArrayOf(model.vocabSize)) }
        assertThrows(IllegalArgumentException::class.java) { model.truncate(4) }
        assertThrows(IllegalArgumentException::class.java) { model.keep(intArrayOf(1)) }
        assertThrows(OmniDraftException::class.java) { model.forwardTree(intArrayOf(5), intArrayOf(2)) }
        val sizes = loraSizes(folder.resolve("decoder_1.onnx"))
        val error = assertThrows(OmniDraftException::class.java) {
            model.setAdapter(RecordedPasses.adapter(sizes, 5, 0))
        }
        assertTrue("rank 5" in error.message!! && "at most 4" in error.message!!) { error.message!! }
        assertEquals(null, model.adapter)
        assertArrayEquals(intArrayOf(5, 6, 7), model.held)
    }

    @Test
    fun `without a part for NPUs an error says what to do`() {
        val bundle = Bundle.load(Fixtures.models.resolve("drafter-own")).copy(backend = "qnn")
        val error = assertThrows(OmniDraftException::class.java) {
            openNpuModel(folder, bundle, null, CacheMemory.direct)
        }
        assertTrue("onnxruntime-android-qnn" in error.message!!) { error.message!! }
    }

    @TestFactory
    fun `compiled models compute in emulation what Python computes`(): List<DynamicTest> {
        val provider = provider()
        val folders = compiled().filter { it.resolveSibling("${it.name}.passes.json").exists() }
        assertTrue(folders.isNotEmpty()) { "nothing was recorded: see record_models.py" }
        return folders.map { folder ->
            DynamicTest.dynamicTest(folder.name) {
                val bundle = Bundle.load(folder).also { it.verify(folder) }
                val inputs = bundle.decoders.first().inputs
                openNpuModel(folder, bundle, provider, CacheMemory.direct).use { model ->
                    RecordedPasses.of(folder).single()
                        .replay(model, sizesBesideRank(inputs.associate { it.name to it.sizes }))
                }
            }
        }
    }

    @Test
    fun `an answer is drafted by a compiled model`() = runBlocking {
        val options = EngineOptions(Fixtures.operators, npuProvider = provider(), threads = 1)
        val target = Fixtures.copy("target-4bit", scratch)
        Engine.open(target, compiled().first(), options).use { engine ->
            val asked = listOf(Message("user", "Why is the sky blue?"))
            suspend fun answer(draft: Boolean) =
                engine.answer(asked, AnswerOptions(maxNewTokens = 24, draft = draft)).toList().map { it.token }
            assertEquals(answer(draft = false), answer(draft = true))
            assertTrue(engine.statistics.value.proposed > 0)
        }
    }

    private fun provider(): String {
        val named = System.getenv("OMNIDRAFT_QNN_PROVIDER")
        assumeTrue(named != null, "OMNIDRAFT_QNN_PROVIDER names no libonnxruntime_providers_qnn.so")
        return named
    }

    private fun compiled() = Fixtures.folders(Path.of(System.getenv("OMNIDRAFT_QNN_MODELS")))

    private fun loraSizes(graph: Path): Map<String, Int> =
        OnnxSession(graph, null, passOptions(1)).use { session ->
            sizesBesideRank(session.inputs.mapValues { (_, info) -> info.shape.toList() })
        }
}
