package org.omnidraft.engine

import java.nio.file.Files
import java.nio.file.Path
import kotlin.io.path.createDirectories
import kotlin.io.path.createFile
import kotlin.io.path.exists
import kotlin.io.path.listDirectoryEntries
import kotlin.io.path.readLines
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.omnidraft.engine.core.CoreFixture
import org.omnidraft.engine.files.Progress
import org.omnidraft.engine.text.Message

/** What is opened is closed, and what was learned is kept, however an engine ends. */
class EngineLifeTest {
    @TempDir
    lateinit var folder: Path

    private val target by lazy { Fixtures.copy("target-4bit", folder) }
    private val drafter by lazy { Fixtures.copy("drafter-own", folder) }
    private val state get() = folder.resolve("state")
    private val asked = listOf(Message("user", "Why is the sky blue?"))
    private val how = AnswerOptions(maxNewTokens = 40)

    private fun options(adapter: String? = null, progress: Progress = Progress { _, _ -> }) =
        EngineOptions(Fixtures.operators, threads = 1, state = state, adapter = adapter, progress = progress)

    private fun open(adapter: String? = null) = runBlocking { Engine.open(target, drafter, options(adapter)) }

    private fun Engine.answered() = runBlocking { answer(asked, how).toList() }

    /** Files of the models that this process has mapped: Linux tells them. */
    private fun mapped(): List<String> =
        Path.of("/proc/self/maps").readLines().filter { "$folder" in it }.map { it.substringAfterLast('/') }

    @Test
    fun `an engine that is closed leaves no file of its models mapped`() {
        val engine = open(adapter = "test")
        assertTrue("model.onnx.data" in mapped()) { "${mapped()}" }
        engine.answered()
        engine.close()
        assertEquals(emptyList<String>(), mapped())
    }

    @Test
    fun `what cannot be kept is said, and the models' memory is freed all the same`() {
        for (adapter in listOf("test", null)) {
            val engine = open(adapter)
            engine.answered()
            // In the place of the folders that it would write to.
            for (name in listOf("adapters", "ngrams")) state.createDirectories().resolve(name).let {
                if (!it.exists()) it.createFile()
            }
            val error = assertThrows(OmniDraftException::class.java) { engine.close() }
            assertTrue("$state" in error.message!!, error.message)
            assertEquals(emptyList<String>(), mapped(), "adapter $adapter")
        }
    }

    @Test
    fun `an opening that is broken off leaves nothing open`() {
        for (share in listOf(0.0, 0.5, 1.0)) runBlocking {
            val opening = async(Dispatchers.Default, start = CoroutineStart.LAZY) {
                Engine.open(target, drafter, options(progress = { done, total ->
                    if (done >= share * total) coroutineContext.cancel()
                }))
            }
            assertThrows(CancellationException::class.java) { runBlocking { opening.await() } }
            assertEquals(emptyList<String>(), mapped(), "at $share")
        }
    }

    @Test
    fun `an opening that fails late leaves nothing open`() {
        state.createDirectories().resolve("adapters").createDirectories().resolve("test.adapter").createFile()
        assertThrows(OmniDraftException::class.java) { open(adapter = "test") }
        assertEquals(emptyList<String>(), mapped())
    }

    @Test
    fun `without an adapter n-grams and costs are kept by closing, too`() {
        val first = open()
        first.answered()
        val known = first.statistics.value.ngrams
        assertTrue(known > 0)
        first.close()
        for (place in listOf("ngrams", "costs")) assertEquals(1, state.resolve(place).listDirectoryEntries().size, place)
        open().use {
            it.answered()
            assertTrue(it.statistics.value.ngrams >= known)
        }
        assertTrue(Files.list(state).use { all -> all.noneMatch { "$it".endsWith("adapters") } })
    }

    @Test
    fun `where memory ends, words say so, and the engine answers as before`() {
        var asks = 0
        var last = Int.MAX_VALUE
        val options = EngineOptions(Fixtures.operators, threads = 1, heat = {
            if (++asks >= last) throw OutOfMemoryError("Java heap space")
            Heat.COOL
        })
        runBlocking { Engine.open(target, drafter, options) }.use { engine ->
            val whole = engine.answered().map { it.token }
            for (more in 1..4) {
                last = asks + more
                val error = assertThrows(NotEnoughMemoryException::class.java) { engine.answered() }
                assertTrue("smaller models" in error.message!!, error.message)
                last = Int.MAX_VALUE
                assertEquals(whole, engine.answered().map { it.token })
            }
        }
        val refused = EngineOptions(Fixtures.operators, memory = { throw OutOfMemoryError("Map failed") })
        assertThrows(NotEnoughMemoryException::class.java) { runBlocking { Engine.open(target, drafter, refused) } }
        assertEquals(emptyList<String>(), mapped())
    }

    @Test
    fun `an answer that closing ends says so`() {
        val engine = open()
        val pieces = ArrayList<Piece>()
        val error = assertThrows(OmniDraftException::class.java) {
            runBlocking {
                engine.answer(asked, AnswerOptions(maxNewTokens = 250)).collect {
                    pieces += it
                    if (pieces.size == 1) async(Dispatchers.IO) { engine.close() }.await()
                }
            }
        }
        assertTrue("closed" in error.message!!, error.message)
        assertTrue(pieces.isNotEmpty())
        assertEquals(emptyList<String>(), mapped())
    }

    private companion object {
        init {
            CoreFixture.load()
        }
    }
}
