package org.omnidraft.engine.models

import java.nio.file.Path
import kotlin.io.path.exists
import kotlin.io.path.name
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import org.omnidraft.engine.Fixtures

class OnnxModelTest {
    @TestFactory
    fun `small models compute what Python computes`() = comparisons(Fixtures.models)

    @TestFactory
    fun `real models compute what Python computes`() = comparisons(Fixtures.realModels())

    private fun comparisons(parent: Path): List<DynamicTest> {
        val recorded = Fixtures.folders(parent)
            .filter { it.resolveSibling("${it.name}.passes.json").exists() }
        assertTrue(recorded.isNotEmpty()) { "nothing was recorded in $parent: see record_models.py" }
        return recorded.flatMap { folder ->
            RecordedPasses.of(folder).map { run ->
                DynamicTest.dynamicTest("${folder.name}, ${run.threads} threads") {
                    val description = OnnxDescription.read(folder)
                    OnnxModel(description, Fixtures.operators, run.threads).use {
                        run.replay(it, description.loraSizes)
                    }
                }
            }
        }
    }
}
