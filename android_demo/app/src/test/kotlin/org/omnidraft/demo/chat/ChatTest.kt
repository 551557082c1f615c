package org.omnidraft.demo.chat

import java.io.File
import kotlin.test.assertEquals
import kotlin.test.assertFalse
import kotlin.test.assertIs
import kotlin.test.assertNull
import kotlin.test.assertTrue
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.Job
import kotlinx.coroutines.cancel
import kotlinx.coroutines.test.StandardTestDispatcher
import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.runCurrent
import kotlinx.coroutines.test.runTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.omnidraft.demo.models.ModelFolders

@OptIn(ExperimentalCoroutinesApi::class)
class ChatTest {
    @TempDir
    lateinit var folder: File

    private val opener = FakeOpener()
    private val file get() = ChatFile(File(folder, "chat.json"))
    private val pair = Choice("target", "drafter")

    /** A chat in a process of its own, which ends with the block. */
    private fun process(test: suspend TestScope.(Chat) -> Unit) = runTest {
        val dispatcher = StandardTestDispatcher(testScheduler)
        val scope = CoroutineScope(dispatcher + Job())
        val models = ModelFolders { name -> File(folder, name).takeIf { name != "gone" } }
        test(Chat(scope, opener, models, file, dispatcher))
        scope.cancel()
    }

    private fun TestScope.opened(chat: Chat, choice: Choice = pair): FakeAssistant {
        chat.open(choice)
        runCurrent()
        return opener.last
    }

    private fun TestScope.ask(chat: Chat, text: String) {
        chat.send(text)
        runCurrent()
    }

    private fun TestScope.exchange(chat: Chat, question: String, answer: String) {
        ask(chat, question)
        opener.last.say(answer)
        opener.last.end()
        runCurrent()
    }

    @Test
    fun `without a model nothing can be sent`() = process { chat ->
        chat.restore()
        runCurrent()
        ask(chat, "Hello")
        assertEquals(Phase.NoModel, chat.state.value.phase)
        assertEquals(emptyList(), chat.state.value.turns)
    }

    @Test
    fun `models are opened by their folders`() = process { chat ->
        opener.waitFor = CompletableDeferred()
        chat.open(pair)
        runCurrent()
        assertEquals(Phase.Opening, chat.state.value.phase)
        assertFalse(chat.state.value.canSend)
        opener.waitFor?.complete(Unit)
        runCurrent()
        assertEquals(Phase.Ready, chat.state.value.phase)
        assertEquals(File(folder, "target") to File(folder, "drafter"), opener.folders.single())
    }

    @Test
    fun `models that cannot be opened say why`() = process { chat ->
        opener.failure = AssistantException("model.onnx is missing.")
        chat.open(pair)
        runCurrent()
        assertEquals(Phase.Failed("model.onnx is missing."), chat.state.value.phase)
        opener.failure = null
        opened(chat)
        assertEquals(Phase.Ready, chat.state.value.phase)
    }

    @Test
    fun `a model that was deleted is named`() = process { chat ->
        chat.open(Choice("gone"))
        runCurrent()
        assertTrue("gone" in assertIs<Phase.Failed>(chat.state.value.phase).message)
    }

    @Test
    fun `an answer grows piece by piece`() = process { chat ->
        val assistant = opened(chat)
        ask(chat, "  Why?  ")
        assertEquals(Phase.Answering, chat.state.value.phase)
        assistant.say("Be", Origin.FREE)
        runCurrent()
        assertEquals(Ending.OPEN, chat.state.value.turns.last().ending)
        assistant.say("cause", Origin.MERGED)
        assistant.end()
        runCurrent()
        assertEquals(Phase.Ready, chat.state.value.phase)
        val (question, answer) = chat.state.value.turns
        assertEquals("Why?", question.text)
        assertEquals("Because", answer.text)
        assertEquals(listOf(Origin.FREE, Origin.MERGED), answer.pieces.map { it.origin })
        assertEquals(Ending.COMPLETE, answer.ending)
    }

    @Test
    fun `each question goes with the whole conversation`() = process { chat ->
        opened(chat)
        exchange(chat, "One?", "1")
        ask(chat, "Two?")
        val expected = listOf(
            Message(Role.USER, "One?"),
            Message(Role.ASSISTANT, "1"),
            Message(Role.USER, "Two?"),
        )
        assertEquals(expected, opener.last.asked.last().first)
    }

    @Test
    fun `while it answers, nothing else is asked`() = process { chat ->
        val assistant = opened(chat)
        ask(chat, "One?")
        ask(chat, "Two?")
        assertEquals(1, assistant.asked.size)
        assertEquals(2, chat.state.value.turns.size)
    }

    @Test
    fun `blank questions are not asked`() = process { chat ->
        ask(chat, " \n ".also { opened(chat) })
        assertEquals(emptyList(), chat.state.value.turns)
    }

    @Test
    fun `a stopped answer keeps what it has`() = process { chat ->
        val assistant = opened(chat)
        ask(chat, "Why?")
        assistant.say("Be")
        runCurrent()
        chat.stop()
        runCurrent()
        assertEquals("Be", chat.state.value.turns.last().text)
        assertEquals(Ending.STOPPED, chat.state.value.turns.last().ending)
        assertEquals(Phase.Ready, chat.state.value.phase)
    }

    @Test
    fun `an answer that never began gives its question back`() = process { chat ->
        opened(chat)
        exchange(chat, "One?", "1")
        ask(chat, "Too long?")
        opener.last.fail("The prompt has 9000 tokens, the context 2048.")
        runCurrent()
        val state = chat.state.value
        assertEquals(2, state.turns.size)
        assertEquals("Too long?", state.unanswered)
        assertEquals(Notice.Problem("The prompt has 9000 tokens, the context 2048."), state.notice)
        assertEquals(Phase.Ready, state.phase)
        chat.takenBack()
        assertNull(chat.state.value.unanswered)
    }

    @Test
    fun `an answer that fails midway keeps what it has and says why`() = process { chat ->
        val assistant = opened(chat)
        ask(chat, "Why?")
        assistant.say("Be")
        assistant.fail("There is no memory left.")
        runCurrent()
        assertEquals(Ending.FAILED, chat.state.value.turns.last().ending)
        assertEquals("Be", chat.state.value.turns.last().text)
        assertEquals(Notice.Problem("There is no memory left."), chat.state.value.notice)
        exchange(chat, "Again?", "Yes")
        assertNull(chat.state.value.notice)
    }

    @Test
    fun `the drafter is used where there is one and it is wanted`() = process { chat ->
        opened(chat)
        exchange(chat, "1", "1")
        chat.setDraft(false)
        exchange(chat, "2", "2")
        assertEquals(listOf(true, false), opener.last.asked.map { it.second.draft })
        opened(chat, Choice("target"))
        chat.setDraft(true)
        exchange(chat, "3", "3")
        assertEquals(listOf(false), opener.last.asked.map { it.second.draft })
    }

    @Test
    fun `learning is switched, and stays switched for the next models`() = process { chat ->
        assertFalse(opened(chat).learns)
        chat.setLearn(true)
        assertTrue(opener.last.learns)
        assertTrue(opened(chat, Choice("other", "drafter")).learns)
    }

    @Test
    fun `whether the drafter can learn is shown once it is open`() = process { chat ->
        for (can in listOf(true, false, true)) {
            opener.canLearn = can
            opened(chat)
            assertEquals(can, chat.state.value.canLearn)
            opener.failure = AssistantException("model.onnx is missing.")
            chat.open(pair)
            runCurrent()
            assertFalse(chat.state.value.canLearn)
            opener.failure = null
        }
    }

    @Test
    fun `the figures are those of the models that are open`() = process { chat ->
        val first = opened(chat)
        first.statistics.value = Statistics(tokens = 7)
        runCurrent()
        assertEquals(7, chat.state.value.statistics.tokens)
        opened(chat)
        first.statistics.value = Statistics(tokens = 8)
        runCurrent()
        assertEquals(0, chat.state.value.statistics.tokens)
    }

    @Test
    fun `other models take the place of the first, whose adapter is saved`() = process { chat ->
        val first = opened(chat)
        first.learn(steps = 3)
        ask(chat, "Why?")
        first.say("Be")
        runCurrent()
        opened(chat, Choice("other"))
        assertEquals(1, first.saved)
        assertTrue(first.closed)
        assertEquals(Ending.STOPPED, chat.state.value.turns.last().ending)
        assertEquals(Phase.Ready, chat.state.value.phase)
    }

    @Test
    fun `an adapter that learned nothing is not written`() = process { chat ->
        val assistant = opened(chat)
        chat.save()
        runCurrent()
        assertEquals(0, assistant.saved)
        assistant.learn(steps = 1)
        chat.save()
        runCurrent()
        assertEquals(1, assistant.saved)
        assertEquals(Notice.AdapterSaved, chat.state.value.notice)
    }

    @Test
    fun `without an adapter what the answers taught is saved, and nothing is said`() = process { chat ->
        opened(chat).statistics.value = Statistics(tokens = 9)
        chat.save()
        runCurrent()
        assertEquals(1, opener.last.saved)
        assertNull(chat.state.value.notice)
    }

    @Test
    fun `an adapter that cannot be saved is said in words`() = process { chat ->
        val assistant = opened(chat)
        assistant.learn(steps = 1)
        assistant.saveFailure = AssistantException("The storage is full.")
        chat.save()
        runCurrent()
        assertEquals(Notice.Problem("The storage is full."), chat.state.value.notice)
    }

    @Test
    fun `models that close badly give way all the same, in words`() = process { chat ->
        opened(chat).closeFailure = AssistantException("The storage is full.")
        chat.rest()
        runCurrent()
        assertEquals(Notice.Problem("The storage is full."), chat.state.value.notice)
        assertEquals(Phase.Resting, chat.state.value.phase)
    }

    @Test
    fun `it rests with everything saved, and wakes with the same models`() = process { chat ->
        val first = opened(chat)
        first.learn(steps = 2)
        ask(chat, "Why?")
        first.say("Be")
        runCurrent()
        chat.rest()
        runCurrent()
        assertEquals(Phase.Resting, chat.state.value.phase)
        assertTrue(first.closed)
        assertEquals(1, first.saved)
        chat.wake()
        chat.wake()
        runCurrent()
        assertEquals(Phase.Ready, chat.state.value.phase)
        assertEquals(2, opener.opened.size)
        assertEquals("Be", chat.state.value.turns.last().text)
    }

    @Test
    fun `whenever the user returns, the models are open or open again`() {
        // From what is going on when memory becomes short, and how far closing has come by then.
        for (answering in listOf(true, false)) for (moment in 0..3) process { chat ->
            val first = opened(chat)
            first.learn(steps = 2)
            if (answering) ask(chat, "Why?").also { first.say("Be") }
            first.savingWaits = CompletableDeferred()
            chat.save()
            if (moment > 0) runCurrent()
            chat.rest()
            if (moment > 1) runCurrent()
            if (moment > 2) first.savingWaits?.complete(Unit).also { runCurrent() }
            chat.wake()
            first.savingWaits?.complete(Unit)
            runCurrent()
            if (answering) chat.stop().also { runCurrent() }
            assertEquals(Phase.Ready, chat.state.value.phase, "answering $answering, moment $moment")
            assertFalse(opener.last.closed)
            exchange(chat, "Still there?", "Yes")
            assertEquals("Yes", chat.state.value.turns.last().text)
        }
    }

    @Test
    fun `models that are being opened are closed again where memory is short and nobody is looking`() =
        process { chat ->
            opener.waitFor = CompletableDeferred()
            chat.open(pair)
            runCurrent()
            chat.rest()
            runCurrent()
            opener.waitFor?.complete(Unit)
            runCurrent()
            assertEquals(Phase.Resting, chat.state.value.phase)
            assertTrue(opener.last.closed)
            chat.wake()
            runCurrent()
            assertEquals(Phase.Ready, chat.state.value.phase)
        }

    @Test
    fun `nothing is asked of models that are being closed`() = process { chat ->
        val first = opened(chat)
        first.learn(steps = 1)
        first.savingWaits = CompletableDeferred()
        chat.open(Choice("other"))
        runCurrent()
        ask(chat, "Why?")
        assertEquals(emptyList(), chat.state.value.turns)
        first.savingWaits?.complete(Unit)
        runCurrent()
        exchange(chat, "Why?", "Because")
        assertEquals(1, opener.last.asked.size)
    }

    @Test
    fun `without models it neither rests nor wakes`() = process { chat ->
        chat.rest()
        chat.wake()
        runCurrent()
        assertEquals(Phase.NoModel, chat.state.value.phase)
    }

    @Test
    fun `a new conversation begins empty, with the same models`() = process { chat ->
        opened(chat)
        exchange(chat, "One?", "1")
        ask(chat, "Two?")
        chat.clear()
        runCurrent()
        assertEquals(emptyList(), chat.state.value.turns)
        assertEquals(Phase.Ready, chat.state.value.phase)
        assertNull(chat.state.value.unanswered)
    }

    @Test
    fun `the next process goes on where this one ended`() {
        process { chat ->
            opened(chat)
            chat.setLearn(true)
            chat.setDraft(false)
            exchange(chat, "One?", "1")
            ask(chat, "Two?")
            opener.last.say("tw", Origin.LOOKUP)
            runCurrent()
            chat.save()
            runCurrent()
        }
        process { chat ->
            chat.restore()
            runCurrent()
            val state = chat.state.value
            assertEquals(Phase.Ready, state.phase)
            assertEquals(pair, state.choice)
            assertEquals(listOf("One?", "1", "Two?", "tw"), state.turns.map { it.text })
            assertEquals(Piece("tw", Origin.LOOKUP), state.turns.last().pieces.single())
            assertEquals(Ending.STOPPED, state.turns.last().ending)
            assertFalse(state.draft)
            assertTrue(opener.last.learns)
        }
    }

    @Test
    fun `a damaged conversation is set aside in words`() {
        File(folder, "chat.json").writeText("{\"turns\": [")
        process { chat ->
            chat.restore()
            runCurrent()
            assertEquals(Notice.ConversationDamaged, chat.state.value.notice)
            assertEquals("{\"turns\": [", File(folder, "chat.json.damaged").readText())
            opened(chat)
            assertEquals(Phase.Ready, chat.state.value.phase)
        }
    }
}
