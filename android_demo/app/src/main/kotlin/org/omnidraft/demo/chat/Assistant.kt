package org.omnidraft.demo.chat

import java.io.File
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.serialization.Serializable

/** How a token of an answer came about. */
enum class Origin {
    /** Drafted, and accepted by the target. */
    DIRECT,

    /** Several draft tokens, joined by the n-gram cache and accepted. */
    MERGED,

    /** The target's choice in the place of a rejected draft token. */
    CORRECTED,

    /** The target's own next token. */
    FREE,

    /** Copied from the text so far, and accepted. */
    LOOKUP,
}

/** A token's text, which may be empty: a character's bytes may be spread over several tokens. */
@Serializable
data class Piece(val text: String, val origin: Origin)

enum class Role { USER, ASSISTANT }

data class Message(val role: Role, val content: String)

/** How to answer. [temperature] 0 takes the likeliest token; [draft] false decodes plainly. */
data class AnswerOptions(
    val maxNewTokens: Int = 512,
    val temperature: Double = 0.0,
    val seed: Long = 0,
    val draft: Boolean = true,
)

/**
 * Sums over all answers since the models were opened.
 *
 * Tokens per second are those of the last answer with a drafter, and of the last one without; null:
 * there was none. [acceptance] has accepted ÷ proposed tokens of each round that proposed some,
 * the oldest first. [memoryBytes] is what the models and their caches hold.
 */
data class Statistics(
    val tokens: Int = 0,
    val rounds: Int = 0,
    val accepted: Int = 0,
    val proposed: Int = 0,
    val tokensPerSecond: Double? = null,
    val plainTokensPerSecond: Double? = null,
    val acceptance: List<Double> = emptyList(),
    val ngrams: Int = 0,
    val memoryBytes: Long = 0,
    val learningSteps: Int = 0,
)

/** A failure that [message] explains to the user. */
class AssistantException(message: String, cause: Throwable? = null) : Exception(message, cause)

/** A target and its drafter, ready to answer. */
interface Assistant : AutoCloseable {
    val statistics: StateFlow<Statistics>

    /** Whether the drafter can learn: there is one, exported with its training step. */
    val canLearn: Boolean

    /**
     * Answers the last message. Cancelling the collector stops within a round.
     *
     * Throws [AssistantException] into the collector.
     */
    fun answer(messages: List<Message>, options: AnswerOptions): Flow<Piece>

    /** Lets the drafter learn from answers, or stops it. */
    fun setLearning(on: Boolean)

    /** Writes what was learned to the disk, whole or not at all. Throws [AssistantException]. */
    suspend fun saveAdapter()

    /** Ends the answer under way and frees the models' memory. Throws [AssistantException]. */
    override fun close()
}

/** Opens models. */
fun interface AssistantOpener {
    /**
     * Opens the folder [target], and [drafter], if there is one.
     *
     * Throws [AssistantException].
     */
    suspend fun open(target: File, drafter: File?): Assistant
}
