package org.omnidraft.demo.chat

import kotlinx.serialization.Serializable

/** How an answer ended. */
enum class Ending { OPEN, COMPLETE, STOPPED, FAILED }

/** One message of a conversation; the user's has one piece. */
@Serializable
data class Turn(val role: Role, val pieces: List<Piece>, val ending: Ending = Ending.COMPLETE) {
    val text: String
        get() = pieces.joinToString("") { it.text }
}

/** The models to answer with, by their folders' names; no [drafter]: decode plainly. */
@Serializable
data class Choice(val target: String, val drafter: String? = null)

/** Where the screen stands. */
sealed interface Phase {
    /** No models were chosen. */
    data object NoModel : Phase

    data object Opening : Phase

    data object Ready : Phase

    data object Answering : Phase

    /** The models are closed, or soon will be: the app is out of sight, and memory is short. */
    data object Resting : Phase

    /** The models cannot be opened. */
    data class Failed(val message: String) : Phase
}

/** What the user is told once, until something else happens. */
sealed interface Notice {
    data object AdapterSaved : Notice

    /** The saved conversation was unreadable, and set aside. */
    data object ConversationDamaged : Notice

    /** [message] says what failed, in the engine's words. */
    data class Problem(val message: String) : Notice
}

/** Everything that the chat's screen shows. */
data class ChatState(
    val phase: Phase = Phase.NoModel,
    val choice: Choice? = null,
    val turns: List<Turn> = emptyList(),
    /** What was asked in vain: it goes back into the input field. */
    val unanswered: String? = null,
    val draft: Boolean = true,
    val learn: Boolean = false,
    /** Whether the drafter that is open can learn. */
    val canLearn: Boolean = false,
    val statistics: Statistics = Statistics(),
    val notice: Notice? = null,
) {
    val canSend: Boolean
        get() = phase == Phase.Ready

    val canDraft: Boolean
        get() = choice?.drafter != null
}
