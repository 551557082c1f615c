package org.omnidraft.engine.models

import ai.onnxruntime.OrtSession.SessionOptions.OptLevel
import java.nio.file.Path
import kotlin.io.path.exists
import kotlin.io.path.name
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.omnidraft.engine.ContextOverflowException
import org.omnidraft.engine.Fixtures
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.files.Bundle

/** Drafters for NPUs: their graphs before they were compiled, and compiled ones in emulation. */
class StaticModelTest {
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
        val provider = System.getenv("OMNIDRAFT_QNN_PROVIDER")
        assumeTrue(provider != null, "OMNIDRAFT_QNN_PROVIDER names no libonnxruntime_providers_qnn.so")
        val folders = Fixtures.folders(Path.of(System.getenv("OMNIDRAFT_QNN_MODELS")))
            .filter { it.resolveSibling("${it.name}.passes.json").exists() }
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

    private fun loraSizes(graph: Path): Map<String, Int> =
        OnnxSession(graph, null, passOptions(1)).use { session ->
            sizesBesideRank(session.inputs.mapValues { (_, info) -> info.shape.toList() })
        }
}
