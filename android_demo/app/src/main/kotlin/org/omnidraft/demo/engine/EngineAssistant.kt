package org.omnidraft.demo.engine

import android.content.Context
import java.io.File
import java.io.IOException
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.SharingStarted
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.catch
import kotlinx.coroutines.flow.map
import kotlinx.coroutines.flow.stateIn
import kotlinx.coroutines.withContext
import org.omnidraft.android.PhoneHeat
import org.omnidraft.android.phoneOptions
import org.omnidraft.demo.chat.AnswerOptions
import org.omnidraft.demo.chat.Assistant
import org.omnidraft.demo.chat.AssistantException
import org.omnidraft.demo.chat.AssistantOpener
import org.omnidraft.demo.chat.Message
import org.omnidraft.demo.chat.Origin
import org.omnidraft.demo.chat.Piece
import org.omnidraft.demo.chat.Role
import org.omnidraft.demo.chat.Statistics
import org.omnidraft.engine.Engine
import org.omnidraft.engine.EngineStatistics
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.models.OnnxDescription

/** Opens models in the engine. */
class EngineOpener(private val context: Context) : AssistantOpener {
    override suspend fun open(target: File, drafter: File?): Assistant {
        // A bundle that was exported without its training step does not learn.
        val learns = drafter != null && File(drafter, "training.onnx").isFile
        val heat = PhoneHeat(context)
        try {
            val adapter = if (drafter != null && learns) adapterName(target, drafter) else null
            val options = phoneOptions(context, heat, adapter)
            val engine = Engine.open(target.toPath(), drafter?.toPath(), options)
            return EngineAssistant(engine, heat, canLearn = adapter != null)
        } catch (error: Throwable) {
            heat.close()
            throw inWords(error)
        }
    }

    /** For each target the drafter learns something of its own; what folders are called may change. */
    private suspend fun adapterName(target: File, drafter: File) = withContext(Dispatchers.IO) {
        listOf(drafter, target).joinToString("-") {
            OnnxDescription.read(it.toPath(), checksums = false).sourceSha256.take(DIGITS)
        }
    }

    private companion object {
        const val DIGITS = 16
    }
}

/** The engine as the chat sees it. */
private class EngineAssistant(
    private val engine: Engine,
    private val heat: PhoneHeat,
    override val canLearn: Boolean,
) : Assistant {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)

    override val statistics: StateFlow<Statistics> = engine.statistics.map(::shown)
        .stateIn(scope, SharingStarted.Eagerly, shown(engine.statistics.value))

    override fun answer(messages: List<Message>, options: AnswerOptions): Flow<Piece> {
        val conversation = messages.map { EngineMessage(it.role.word, it.content) }
        val how = EngineAnswerOptions(
            maxNewTokens = options.maxNewTokens,
            temperature = options.temperature,
            seed = options.seed,
            draft = options.draft,
        )
        return engine.answer(conversation, how)
            .map { Piece(it.text, Origin.valueOf(it.origin.name)) }
            .catch { throw inWords(it) }
    }

    override fun setLearning(on: Boolean) = engine.setLearning(on)

    override suspend fun saveAdapter() = try {
        engine.save()
    } catch (error: Exception) {
        throw inWords(error)
    }

    override fun close() {
        scope.cancel()
        try {
            engine.close()
        } catch (error: Exception) {
            throw inWords(error)
        } finally {
            heat.close()
        }
    }
}

private typealias EngineMessage = org.omnidraft.engine.text.Message

private typealias EngineAnswerOptions = org.omnidraft.engine.AnswerOptions

private val Role.word: String
    get() = name.lowercase()

private fun shown(sums: EngineStatistics) = Statistics(
    tokens = sums.tokens,
    rounds = sums.rounds,
    accepted = sums.accepted,
    proposed = sums.proposed,
    tokensPerSecond = sums.tokensPerSecond,
    plainTokensPerSecond = sums.plainTokensPerSecond,
    acceptance = sums.acceptance,
    ngrams = sums.ngrams,
    memoryBytes = sums.memoryBytes,
    learningSteps = sums.learningSteps,
)

/** The engine's errors explain themselves; what else goes wrong is at least named. */
private fun inWords(error: Throwable): Throwable = when (error) {
    is CancellationException -> error
    is OmniDraftException -> AssistantException(error.message.orEmpty(), error)
    is OutOfMemoryError -> AssistantException(
        "The phone has too little memory for these models. Close other apps, or choose smaller ones.",
        error,
    )
    is LinkageError -> AssistantException(
        "A library of this app cannot be loaded here: ${error.message}. Install a build for this " +
            "phone's kind of processor.",
        error,
    )
    is IOException -> AssistantException("A file cannot be read or written: ${error.message}.", error)
    is RuntimeException -> AssistantException("This should not have happened: $error.", error)
    else -> error
}
