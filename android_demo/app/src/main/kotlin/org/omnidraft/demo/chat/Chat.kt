package org.omnidraft.demo.chat

import java.io.IOException
import kotlin.coroutines.CoroutineContext
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import org.omnidraft.demo.models.ModelFolders

/**
 * The chat's screen without its views: takes what the user does, and shows a [state].
 *
 * It outlives the activity. All calls come from the thread of [scope]; files are written in [io].
 */
class Chat(
    private val scope: CoroutineScope,
    private val opener: AssistantOpener,
    private val models: ModelFolders,
    private val file: ChatFile,
    private val io: CoroutineContext,
) {
    private val current = MutableStateFlow(ChatState())
    val state: StateFlow<ChatState> = current

    private var assistant: Assistant? = null
    private var answering: Job? = null
    private var figures: Job? = null

    /** Whether the user is back since the last [rest]. */
    private var looking = true

    /** Held while models are opened or closed, and while what was learned is saved. */
    private val lifecycle = Mutex()
    private val writing = Mutex()

    /** Reads what an earlier process saved, and opens its models. */
    fun restore() = scope.launch {
        try {
            val saved = withContext(io) { file.read() } ?: return@launch
            current.update {
                it.copy(
                    choice = saved.choice,
                    turns = saved.turns,
                    draft = saved.draft,
                    learn = saved.learn,
                )
            }
            saved.choice?.let { open(it) }
        } catch (_: ChatFile.DamagedException) {
            current.update { it.copy(notice = Notice.ConversationDamaged) }
        }
    }

    /** Opens models in the place of those that are open. */
    fun open(choice: Choice) = scope.launch {
        lifecycle.withLock {
            current.update {
                it.copy(phase = Phase.Opening, choice = choice, canLearn = false, notice = null)
            }
            stopAnswering()
            closeModels()
            try {
                val opened = opener.open(folder(choice.target), choice.drafter?.let(::folder))
                assistant = opened
                opened.setLearning(state.value.learn)
                figures = scope.launch {
                    opened.statistics.collect { news ->
                        current.update { it.copy(statistics = news) }
                    }
                }
                current.update { it.copy(phase = Phase.Ready, canLearn = opened.canLearn) }
            } catch (error: AssistantException) {
                current.update { it.copy(phase = Phase.Failed(error.message.orEmpty())) }
            }
        }
        saveConversation()
    }

    private fun folder(name: String) = models.folder(name)
        ?: throw AssistantException("There is no model $name any more. Choose another, or import it.")

    /** Asks [text]; does nothing unless models are ready and it says something. */
    fun send(text: String) {
        val assistant = assistant
        if (!state.value.canSend || assistant == null || text.isBlank()) return
        val question = Turn(Role.USER, listOf(Piece(text.trim(), Origin.FREE)))
        current.update {
            it.copy(
                phase = Phase.Answering,
                turns = it.turns + question + Turn(Role.ASSISTANT, emptyList(), Ending.OPEN),
                unanswered = null,
                notice = null,
            )
        }
        answering = scope.launch { answer(assistant) }
    }

    private suspend fun answer(assistant: Assistant) {
        val messages = state.value.turns.dropLast(1).map { Message(it.role, it.text) }
        val options = AnswerOptions(draft = state.value.draft && state.value.canDraft)
        var ending = Ending.STOPPED
        try {
            assistant.answer(messages, options).collect { piece ->
                changeAnswer { it.copy(pieces = it.pieces + piece) }
            }
            ending = Ending.COMPLETE
        } catch (error: AssistantException) {
            ending = Ending.FAILED
            current.update { it.copy(notice = Notice.Problem(error.message.orEmpty())) }
        } finally {
            changeAnswer { it.copy(ending = ending) }
            current.update {
                val ended = withoutEmptyAnswer(it)
                // Else the models are being closed.
                if (it.phase == Phase.Answering) ended.copy(phase = Phase.Ready) else ended
            }
            saveConversation()
        }
    }

    private fun changeAnswer(change: (Turn) -> Turn) =
        current.update { it.copy(turns = it.turns.dropLast(1) + change(it.turns.last())) }

    /** An answer that never began goes, and its question with it: back into the input field. */
    private fun withoutEmptyAnswer(state: ChatState): ChatState {
        if (state.turns.last().pieces.isNotEmpty()) return state
        val question = state.turns[state.turns.size - 2]
        return state.copy(turns = state.turns.dropLast(2), unanswered = question.text)
    }

    /** Stops the answer; what there is of it stays. */
    fun stop() {
        answering?.cancel()
    }

    private suspend fun stopAnswering() {
        answering?.cancelAndJoin()
        answering = null
    }

    /** Lets the drafter propose tokens, from the next answer on. */
    fun setDraft(on: Boolean) {
        current.update { it.copy(draft = on) }
        saveConversation()
    }

    /** Lets the drafter learn from answers. */
    fun setLearn(on: Boolean) {
        current.update { it.copy(learn = on) }
        assistant?.setLearning(on)
        saveConversation()
    }

    /** The input field has taken [ChatState.unanswered] back. */
    fun takenBack() = current.update { it.copy(unanswered = null) }

    /** Begins a new conversation with the same models. */
    fun clear() = scope.launch {
        stopAnswering()
        current.update { it.copy(turns = emptyList(), unanswered = null, notice = null) }
        saveConversation()
    }

    /** Saves conversation and adapter: the process may end at any time from now on. */
    fun save() = scope.launch {
        saveConversation()
        lifecycle.withLock { saveAdapter() }
    }

    /** The system is short of memory and nobody is looking: saves everything and closes the models. */
    fun rest() {
        looking = false
        scope.launch {
            lifecycle.withLock {
                if (assistant == null || looking) return@launch
                current.update { it.copy(phase = Phase.Resting) }
                stopAnswering()
                closeModels()
            }
            saveConversation()
        }
    }

    /** The user is back: opens the models that [rest] closed, or closes. */
    fun wake() {
        looking = true
        val choice = state.value.choice
        if (state.value.phase != Phase.Resting || choice == null) return
        current.update { it.copy(phase = Phase.Opening) }
        open(choice)
    }

    private suspend fun closeModels() {
        saveAdapter()
        figures?.cancel()
        val closing = assistant
        assistant = null
        inWords { withContext(io) { closing?.close() } }
    }

    private suspend fun saveAdapter() {
        val learned = assistant ?: return
        val done = learned.statistics.value
        if (done.tokens == 0 && done.learningSteps == 0) return
        inWords {
            learned.saveAdapter()
            if (done.learningSteps > 0) current.update { it.copy(notice = Notice.AdapterSaved) }
        }
    }

    private suspend fun inWords(call: suspend () -> Unit) = try {
        call()
    } catch (error: AssistantException) {
        current.update { it.copy(notice = Notice.Problem(error.message.orEmpty())) }
    }

    private fun saveConversation() = scope.launch {
        writing.withLock {
            try {
                val saved = toSave(state.value)
                withContext(io) { file.write(saved) }
            } catch (error: IOException) {
                current.update { it.copy(notice = Notice.Problem(error.message.orEmpty())) }
            }
        }
    }

    /** An answer that is being written counts as stopped if the process ends here. */
    private fun toSave(state: ChatState): SavedChat {
        val turns = state.turns.map {
            if (it.ending == Ending.OPEN) it.copy(ending = Ending.STOPPED) else it
        }
        return SavedChat(state.choice, turns, state.draft, state.learn)
    }
}
