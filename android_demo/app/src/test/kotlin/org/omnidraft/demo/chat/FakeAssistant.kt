package org.omnidraft.demo.chat

import java.io.File
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.update

/** An assistant that says what a test gives it: [say], then [end] or [fail]. */
class FakeAssistant(override val canLearn: Boolean) : Assistant {
    override val statistics = MutableStateFlow(Statistics())
    val asked = mutableListOf<Pair<List<Message>, AnswerOptions>>()
    var learns = false
    var saved = 0
    var closed = false

    /** What [saveAdapter] fails with. */
    var saveFailure: AssistantException? = null

    /** What [close] fails with, after it has closed. */
    var closeFailure: AssistantException? = null

    /** Holds [saveAdapter] up. */
    var savingWaits: CompletableDeferred<Unit>? = null

    private var script = Channel<() -> Piece?>(Channel.UNLIMITED)

    fun say(text: String, origin: Origin = Origin.DIRECT) {
        script.trySend { Piece(text, origin) }
    }

    fun end() {
        script.trySend { null }
    }

    fun fail(message: String) {
        script.trySend { throw AssistantException(message) }
    }

    fun learn(steps: Int) = statistics.update { it.copy(learningSteps = steps) }

    override fun answer(messages: List<Message>, options: AnswerOptions): Flow<Piece> = flow {
        check(!closed) { "asked after it was closed" }
        asked += messages to options
        script = Channel(Channel.UNLIMITED)
        for (next in script) emit(next() ?: break)
    }

    override fun setLearning(on: Boolean) {
        learns = on
    }

    override suspend fun saveAdapter() {
        check(!closed) { "saved after it was closed" }
        savingWaits?.await()
        saveFailure?.let { throw it }
        saved++
    }

    override fun close() {
        closed = true
        closeFailure?.let { throw it }
    }
}

/** Opens [FakeAssistant]s; [waitFor] holds the next opening up, [failure] lets it fail. */
class FakeOpener : AssistantOpener {
    val opened = mutableListOf<FakeAssistant>()
    val folders = mutableListOf<Pair<File, File?>>()
    var waitFor: CompletableDeferred<Unit>? = null
    var failure: AssistantException? = null
    var canLearn = true

    val last get() = opened.last()

    override suspend fun open(target: File, drafter: File?): Assistant {
        waitFor?.await()
        failure?.let { throw it }
        folders += target to drafter
        return FakeAssistant(canLearn).also { opened += it }
    }
}
