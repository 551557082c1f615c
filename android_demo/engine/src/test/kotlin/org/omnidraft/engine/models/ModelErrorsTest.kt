package org.omnidraft.engine.models

import java.nio.FloatBuffer
import java.nio.file.Path
import kotlin.io.path.copyTo
import kotlin.io.path.listDirectoryEntries
import kotlin.io.path.name
import kotlin.io.path.writeText
import kotlin.random.Random
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.omnidraft.engine.ContextOverflowException
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.Fixtures
import org.omnidraft.engine.NotEnoughMemoryException
import org.omnidraft.engine.OmniDraftException

class ModelErrorsTest {
    private fun description(name: String) = OnnxDescription.read(Fixtures.models.resolve(name))

    private fun model(name: String, maxLength: Int? = null) =
        OnnxModel(description(name), Fixtures.operators, threads = 1, maxLength)

    private fun values(logits: FloatBuffer) = FloatArray(logits.remaining()).also { logits.duplicate().get(it) }

    private fun says(error: Throwable, vararg words: String) {
        for (word in words) assertTrue(word in error.message!!, "'$word' is not in: ${error.message}")
    }

    @Test
    fun `any grouping gives the bits of one token at a time`() {
        val random = Random(3)
        for (name in listOf("target-4bit", "target-8bit")) model(name).use { model ->
            val invariance = Invariance.measure(model)
            assertEquals(0f, invariance.difference, name)
            assertEquals(0, model.length)
            val tokens = IntArray(150) { random.nextInt(model.vocabSize) }
            val alone = tokens.map { values(model.forward(intArrayOf(it))) }
            repeat(20) {
                model.truncate(random.nextInt(minOf(model.length, 120) + 1))
                while (model.length < tokens.size) {
                    val start = model.length
                    val count = 1 + random.nextInt(minOf(40, tokens.size - start))
                    val rows = 1 + random.nextInt(count)
                    val logits = model.forward(tokens.copyOfRange(start, start + count), rows)
                    val expected = alone.subList(start + count - rows, start + count).flatMap { it.asList() }.toFloatArray()
                    assertArrayEquals(expected, values(logits), "$name at $start")
                }
                assertArrayEquals(tokens, model.held)
            }
        }
    }

    @Test
    fun `a node of a tree has the bits of its path alone`() {
        val random = Random(5)
        for (name in listOf("target-4bit", "drafter-own")) model(name).use { model ->
            model.leastPass = if (name == "drafter-own") 2 else Invariance.measure(model).leastPass
            repeat(8) {
                model.truncate(0)
                val text = IntArray(80 + random.nextInt(30)) { random.nextInt(model.vocabSize) }
                model.forward(text, 1)
                val count = 3 + random.nextInt(20)
                val parents = IntArray(count) { text.size - 1 + random.nextInt(it + 1) }
                val tokens = IntArray(count) { random.nextInt(model.vocabSize) }
                val cut = random.nextInt(count + 1)
                if (cut > 0) model.forwardTree(tokens.copyOf(cut), parents.copyOf(cut))
                if (cut < count) model.forwardTree(tokens.copyOfRange(cut, count), parents.copyOfRange(cut, count))
                assertEquals(text.size + count, model.length)
                assertArrayEquals(text, model.held)
                val path = generateSequence(count - 1) { i -> (parents[i] - text.size).takeIf { it >= 0 } }.toList().reversed()
                model.keep(IntArray(path.size) { text.size + path[it] })
                val chain = text + IntArray(path.size) { tokens[path[it]] }
                assertArrayEquals(chain, model.held)
                val behind = values(model.forward(intArrayOf(7)))
                if (name == "drafter-own") return@repeat // a drafter need not be batch-invariant
                model.truncate(0)
                model.forward(chain, 1)
                assertArrayEquals(values(model.forward(intArrayOf(7))), behind)
            }
        }
    }

    @Test
    fun `a context that is full stays as it was`() {
        model("target-4bit", maxLength = 50).use { model ->
            assertEquals(listOf(50, 0, 320), listOf(model.maxLength, model.length, model.ownLength))
            model.forward(IntArray(45) { it })
            val error = assertThrows(ContextOverflowException::class.java) { model.forward(IntArray(6)) }
            says(error, "45 + 6 tokens exceed the context of 50")
            assertThrows(ContextOverflowException::class.java) { model.forwardTree(IntArray(6), IntArray(6) { 44 }) }
            assertEquals(45, model.length)
            model.forward(IntArray(5))
        }
    }

    @Test
    fun `wrong arguments change nothing`() {
        model("target-4bit").use { model ->
            model.forward(intArrayOf(1, 2, 3))
            for (tokens in listOf(intArrayOf(), intArrayOf(-1), intArrayOf(model.vocabSize))) {
                assertThrows(IllegalArgumentException::class.java) { model.forward(tokens) }
            }
            for (rows in listOf(0, 3)) assertThrows(IllegalArgumentException::class.java) { model.forward(intArrayOf(1, 2), rows) }
            for (length in listOf(-1, 4)) assertThrows(IllegalArgumentException::class.java) { model.truncate(length) }
            for (parent in listOf(-1, 1, 3, 9)) {
                assertThrows(IllegalArgumentException::class.java) { model.forwardTree(intArrayOf(1), intArrayOf(parent)) }
            }
            assertThrows(IllegalArgumentException::class.java) { model.forwardTree(intArrayOf(1, 2), intArrayOf(2)) }
            assertEquals(3, model.length)
            model.forwardTree(intArrayOf(1, 2, 3), intArrayOf(2, 2, 3))
            says(assertThrows(IllegalStateException::class.java) { model.forward(intArrayOf(1)) }, "while a tree is held", "at most the 3 tokens")
            assertThrows(IllegalStateException::class.java) { model.truncate(4) }
            for (path in listOf(intArrayOf(4, 5), intArrayOf(5), intArrayOf(3, 4), intArrayOf(3, 5, 6))) {
                assertThrows(IllegalArgumentException::class.java) { model.keep(path) }
            }
            assertEquals(6, model.length)
            model.keep(intArrayOf(3, 5))
            assertArrayEquals(intArrayOf(1, 2, 3, 1, 3), model.held)
            assertThrows(IllegalStateException::class.java) { model.lastHidden() }
        }
    }

    @Test
    fun `a drafter for any program scores chains alone`() {
        model("drafter-any").use { model ->
            assertTrue(!model.scoresTrees)
            val error = assertThrows(OmniDraftException::class.java) { model.forwardTree(intArrayOf(1), intArrayOf(-1)) }
            says(error, "scores no trees")
            assertEquals(32, model.hiddenSize)
        }
    }

    @Test
    fun `an adapter that does not fit leaves the one in use`() {
        val sizes = description("drafter-own").loraSizes
        val lora = RecordedPasses.adapter(sizes, 4, 0)
        model("drafter-own").use { model ->
            val plain = values(model.forward(intArrayOf(5, 6)))
            model.setAdapter(lora)
            assertEquals(0, model.length)
            val adapted = values(model.forward(intArrayOf(5, 6)))
            assertTrue(!plain.contentEquals(adapted))
            val name = lora.keys.first { it.endsWith(".A") }
            val wrong = listOf(
                lora - name to "without its other half",
                lora + ("lora.9.o.A" to Matrix(1, 1)) to "has no input lora.9.o.A",
                lora + (name to Matrix(3, 4)) to "float32 [${sizes[name]}, 4] expected",
            )
            for ((adapter, word) in wrong) {
                says(assertThrows(OmniDraftException::class.java) { model.setAdapter(adapter) }, word)
                assertEquals(lora, model.adapter)
            }
            model.truncate(0)
            assertArrayEquals(adapted, values(model.forward(intArrayOf(5, 6))))
            // Of rank 0 it adds nothing, as none does.
            model.setAdapter(sizes.mapValues { (each, size) -> if (each.endsWith(".A")) Matrix(size, 0) else Matrix(0, size) })
            assertArrayEquals(plain, values(model.forward(intArrayOf(5, 6))))
            model.setAdapter(null)
            assertArrayEquals(plain, values(model.forward(intArrayOf(5, 6))))
        }
        model("target-4bit").use { model ->
            says(assertThrows(OmniDraftException::class.java) { model.setAdapter(lora) }, "has no LoRA inputs")
        }
    }

    @Test
    fun `what ONNX Runtime refuses is said in words`(@TempDir folder: Path) {
        Fixtures.models.resolve("target-4bit").listDirectoryEntries().forEach { it.copyTo(folder.resolve(it.name)) }
        val description = OnnxDescription.read(folder)
        folder.resolve("model.onnx").writeText("no graph")
        says(assertThrows(DamagedFileException::class.java) { OnnxModel(description, Fixtures.operators) }, "no ONNX graph")
        val operators = assertThrows(OmniDraftException::class.java) { OnnxModel(description("target-4bit"), "/none/libomnidraft_ops.so") }
        says(operators, "refuses OmniDraft's operators (/none/libomnidraft_ops.so)")
    }

    @Test
    fun `memory that is not there is refused before it is tried`() {
        val description = description("target-4bit")
        val need = description.memoryNeed()
        assertEquals(description.fileBytes, need.weights)
        model("target-4bit").use { model ->
            assertEquals(roundUp(model.maxLength, LENGTH_STEP) * model.kvBytesPerToken.toLong(), need.cache)
        }
        need.check(need.total)
        val few = assertThrows(NotEnoughMemoryException::class.java) { need.check(need.total - 1, "SmolLM") }
        says(few, "SmolLM needs about", "keys and values of 320 tokens", "at most 288 tokens")
        description.memoryNeed(288).check(need.total - 1)
        says(assertThrows(NotEnoughMemoryException::class.java) { need.check(1000) }, "smaller model")
        val none = CacheMemory { throw OutOfMemoryError("no") }
        val error = assertThrows(NotEnoughMemoryException::class.java) {
            OnnxModel(description, Fixtures.operators, memory = none)
        }
        says(error, "reserves no", "of 320 tokens. Choose a shorter context")
    }
}
