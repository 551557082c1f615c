package org.omnidraft.demo.engine

import android.app.ActivityManager
import java.io.File
import java.io.InputStream
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotEquals
import org.junit.Assert.assertTrue
import org.junit.Assume.assumeTrue
import org.junit.Before
import org.junit.Test
import org.junit.runner.RunWith
import org.omnidraft.demo.DemoApplication
import org.omnidraft.demo.await
import org.omnidraft.demo.chat.AnswerOptions
import org.omnidraft.demo.chat.AssistantException
import org.omnidraft.demo.chat.Choice
import org.omnidraft.demo.chat.Ending
import org.omnidraft.demo.chat.Message
import org.omnidraft.demo.chat.Origin
import org.omnidraft.demo.chat.Phase
import org.omnidraft.demo.chat.Piece
import org.omnidraft.demo.chat.Role
import org.omnidraft.demo.models.LibraryNotice
import org.omnidraft.demo.models.Source
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config

/**
 * The app with its own engine and real models: the folders `target` and `drafter` in the one that
 * OMNIDRAFT_TEST_MODELS names. They are imported as a user imports them. Skipped without it.
 */
@RunWith(RobolectricTestRunner::class)
// A native library belongs to one class loader, and each version of Android has its own.
@Config(sdk = [35], application = DemoApplication::class)
class RealModelsTest {
    private val app get() = RuntimeEnvironment.getApplication() as DemoApplication
    private val target get() = File(app.filesDir, "models/$TARGET")
    private val drafter get() = File(app.filesDir, "models/drafter")

    @Before
    fun `import the models`() {
        val models = System.getenv("OMNIDRAFT_TEST_MODELS")?.let(::File)
        assumeTrue("OMNIDRAFT_TEST_MODELS names no folder", models != null && models.isDirectory)
        free(bytes = 8_000_000_000)
        for ((name, folder) in mapOf(TARGET to "target", "drafter" to "drafter")) {
            app.library.import(Folder(name, File(models, folder)))
            await("$name is imported", PATIENCE) { app.library.state.value.importing == null }
            assertEquals(LibraryNotice.Imported(name), app.library.state.value.notice)
        }
    }

    private fun free(bytes: Long) {
        val info = ActivityManager.MemoryInfo().also { it.availMem = bytes }
        shadowOf(app.getSystemService(ActivityManager::class.java)).setMemoryInfo(info)
    }

    private fun asked(question: String) = listOf(Message(Role.USER, question))

    private fun text(pieces: List<Piece>) = pieces.joinToString("") { it.text }

    @Test
    fun `an answer is the same with the drafter and without, and ends where it is no longer wanted`() =
        runBlocking {
            EngineOpener(app).open(target, drafter).use { assistant ->
                for ((question, temperature) in listOf(LONG to 0.0, LONG to 0.8)) {
                    val options = AnswerOptions(maxNewTokens = 100, temperature = temperature, seed = 7)
                    val drafted = assistant.answer(asked(question), options).toList()
                    val plain = assistant.answer(asked(question), options.copy(draft = false)).toList()
                    println("at temperature $temperature: ${text(drafted)}")
                    assertEquals(text(plain), text(drafted))
                    assertEquals(setOf(Origin.FREE), plain.map { it.origin }.toSet())
                    assertTrue(Origin.DIRECT in drafted.map { it.origin })
                }
                val before = assistant.statistics.value
                assertTrue("$before", before.tokens >= 100 && before.accepted in 1..before.proposed)
                assertTrue("$before", before.memoryBytes > 100_000_000)
                // More than is made ahead of who collects.
                val long = AnswerOptions(maxNewTokens = 400)
                assertEquals(3, assistant.answer(asked(LONG), long).take(3).toList().size)
                // The next answer waits for the end of this one.
                assistant.answer(asked(SHORT), AnswerOptions(maxNewTokens = 1)).toList()
                assertTrue(assistant.statistics.value.tokens - before.tokens < 300)
            }
        }

    @Test
    fun `an answer in the chat can be stopped, outlives the process, and its models can be closed`() {
        app.chat.open(Choice(TARGET, "drafter"))
        awaitReady(app)
        app.chat.send(LONG)
        await("some pieces are there", PATIENCE) { app.chat.state.value.turns.last().pieces.size >= 8 }
        assertEquals(Phase.Answering, app.chat.state.value.phase)
        app.chat.stop()
        awaitReady(app)
        val turns = app.chat.state.value.turns
        assertEquals(Ending.STOPPED, turns.last().ending)
        assertNotEquals("", turns.last().text.trim())

        app.chat.send(SHORT)
        awaitReady(app)
        assertEquals(Ending.COMPLETE, app.chat.state.value.turns.last().ending)
        assertTrue(working())
        app.chat.rest()
        await("the models are closed") { app.chat.state.value.phase == Phase.Resting && !working() }

        val next = DemoApplication()
        shadowOf(next).callAttach(app.baseContext)
        next.chat.restore()
        awaitReady(next)
        assertEquals(turns, next.chat.state.value.turns.take(2))
        next.chat.rest()
        await("the models are closed again") { next.chat.state.value.phase == Phase.Resting && !working() }
    }

    /** Waits until models are open and no answer is being written. */
    private fun awaitReady(app: DemoApplication) {
        val before = setOf(Phase.NoModel, Phase.Opening, Phase.Answering)
        await("models are ready", PATIENCE) { app.chat.state.value.phase !in before }
        assertEquals(Phase.Ready, app.chat.state.value.phase)
    }

    private fun working() = Thread.getAllStackTraces().keys.any { it.name == "omnidraft" }

    @Test
    fun `the shortest way to an answer gives the answer of the chat`() = runBlocking {
        val pieces = mutableListOf<String>()
        askOnce(app, SHORT) { pieces += it }
        println("asked once: ${pieces.joinToString("")}")
        val answered = EngineOpener(app).open(target, null).use {
            it.answer(asked(SHORT), AnswerOptions()).toList()
        }
        assertTrue(pieces.size > 1)
        assertEquals(text(answered), pieces.joinToString(""))
    }

    @Test
    fun `too little memory and damaged models are refused in words`() {
        free(bytes = 50_000_000)
        assertTrue(refused(), "a smaller model" in refused())
        free(bytes = 8_000_000_000)
        File(drafter, "model.onnx.data").appendBytes(byteArrayOf(0))
        assertTrue(refused(), "model.onnx.data" in refused())
        assertFalse(working())
    }

    private fun refused(): String {
        val error = runCatching { runBlocking { EngineOpener(app).open(target, drafter).close() } }
        return (error.exceptionOrNull() as AssistantException).message!!
    }

    /** A folder of this machine, as a source of an import. */
    private class Folder(override val name: String, private val folder: File) : Source {
        override fun visit(visit: (path: String, content: InputStream) -> Boolean) {
            val files = checkNotNull(folder.listFiles()) { "$folder has no files" }
            for (file in files) if (!file.inputStream().use { visit(file.name, it) }) return
        }
    }

    private companion object {
        /** What `askOnce` opens. */
        const val TARGET = "smollm2-135m"
        const val LONG = "Why is the sky blue? Explain it in three paragraphs."
        const val SHORT = "What is 2 plus 2?"

        /** Real models take their time: five minutes, beside other work. */
        const val PATIENCE = 30_000
    }
}
