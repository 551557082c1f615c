package org.omnidraft.engine

import java.nio.file.Path
import java.util.concurrent.ExecutionException
import java.util.concurrent.Executors
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.channels.onFailure
import kotlinx.coroutines.channels.trySendBlocking
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.channelFlow
import kotlinx.coroutines.isActive
import kotlinx.coroutines.withContext
import org.omnidraft.engine.core.CoreLibrary
import org.omnidraft.engine.core.Generation
import org.omnidraft.engine.core.Origin
import org.omnidraft.engine.core.Sampling
import org.omnidraft.engine.decoding.Drafting
import org.omnidraft.engine.decoding.FinishReason
import org.omnidraft.engine.decoding.SpeculativeDecoder
import org.omnidraft.engine.decoding.Statistics as Sums
import org.omnidraft.engine.decoding.measureCosts
import org.omnidraft.engine.files.Progress
import org.omnidraft.engine.learning.AdapterStore
import org.omnidraft.engine.learning.Learner
import org.omnidraft.engine.learning.TrainingStep
import org.omnidraft.engine.models.CacheMemory
import org.omnidraft.engine.models.DRAFTER_CONTEXT
import org.omnidraft.engine.models.Invariance
import org.omnidraft.engine.models.OnnxDescription
import org.omnidraft.engine.models.megabytes
import org.omnidraft.engine.models.memoryNeed
import org.omnidraft.engine.text.Message
import org.omnidraft.engine.text.TextStream

/**
 * How models are opened.
 *
 * @property operators the library of OmniDraft's operators: a path, or on Android its name.
 * @property npuProvider the library of ONNX Runtime's QNN provider, for drafters that were exported for an
 *   NPU: a path; null: ONNX Runtime has it in itself, as `onnxruntime-android-qnn` does.
 * @property contextLength longest conversation in tokens; null: the model's own.
 * @property threads that work on a pass.
 * @property memoryLimit bytes that the models may take, see
 *   [MemoryNeed][org.omnidraft.engine.models.MemoryNeed]; null: as much as there is.
 * @property memory where KV caches lie.
 * @property state folder where n-grams, costs and adapters are kept; null: nothing is.
 * @property adapter name of what the drafter learns for this target; null: it does not learn.
 * @property heat what keeps the device from becoming hot; see [Heat].
 * @property progress is told the bytes that have been verified.
 */
class EngineOptions(
    val operators: String = "libomnidraft_ops.so",
    val npuProvider: String? = null,
    val contextLength: Int? = null,
    val threads: Int = 2,
    val memoryLimit: Long? = null,
    val memory: CacheMemory = CacheMemory.direct,
    val state: Path? = null,
    val adapter: String? = null,
    val heat: () -> Heat = { Heat.COOL },
    val progress: Progress = Progress { _, _ -> },
)

/** How hot the device is, and what the engine does about it. */
enum class Heat {
    /** Nothing. */
    COOL,

    /** It does not learn. */
    WARM,

    /** And rests after each round for as long as the round took. */
    HOT,
}

/**
 * How to answer.
 *
 * @property temperature 0 takes the likeliest token.
 * @property seed of the random numbers; the same seed gives the same answer, whatever is drafted.
 * @property draft false decodes plainly.
 */
data class AnswerOptions(
    val maxNewTokens: Int = 512,
    val temperature: Double = 0.0,
    val topP: Double = 1.0,
    val seed: Long = 0,
    val draft: Boolean = true,
)

/**
 * A token's text, which may be empty: a character's bytes may be spread over several tokens.
 *
 * @property token null for what is left of a character at the end.
 */
data class Piece(val token: Int?, val text: String, val origin: Origin)

/**
 * Sums over all answers since the engine was opened.
 *
 * @property tokensPerSecond of the last answer with a drafter; null: there was none.
 * @property plainTokensPerSecond of the last answer without one.
 * @property acceptance accepted ÷ proposed tokens of each round that proposed some, the last ones.
 * @property memoryBytes of weights and KV caches.
 * @property learningSteps updates of the drafter's adapter.
 */
data class EngineStatistics(
    val tokens: Int = 0,
    val rounds: Int = 0,
    val proposed: Int = 0,
    val accepted: Int = 0,
    val tokensPerSecond: Double? = null,
    val plainTokensPerSecond: Double? = null,
    val acceptance: List<Double> = emptyList(),
    val ngrams: Int = 0,
    val memoryBytes: Long = 0,
    val learningSteps: Int = 0,
)

private const val KEPT_ROUNDS = 512

/**
 * A target and its drafter, ready to answer.
 *
 *     val engine = Engine.open(target, drafter, EngineOptions(state = folder, adapter = "phone"))
 *     engine.answer(listOf(Message("user", "Why is the sky blue?"))).collect { print(it.text) }
 *     engine.close()
 *
 * One answer is made at a time; others wait. All work is done on a thread of the engine's own.
 */
class Engine private constructor(
    private val target: LoadedModel,
    private val drafter: LoadedModel?,
    private val options: EngineOptions,
) : AutoCloseable {
    private val executor = Executors.newSingleThreadExecutor { Thread(it, "omnidraft") }
    private val thread = executor.asCoroutineDispatcher()
    private val now = MutableStateFlow(EngineStatistics(memoryBytes = target.bytes + (drafter?.bytes ?: 0)))
    private var step: TrainingStep? = null
    private var learner: Learner? = null
    private var pairing: Pairing? = null
    @Volatile private var learns = options.adapter != null
    @Volatile private var closing = false
    private var counted = Sums() // of the answer under way
    private var roundBegan = 0L

    /**
     * Whether passes of several tokens give the target's bits of one token at a time: if not, an
     * answer may part from plain decoding where two tokens are almost as likely. Null: the target is
     * no converted one.
     */
    val invariance: Invariance? get() = target.invariance

    /** What was done so far. */
    val statistics: StateFlow<EngineStatistics> = now.asStateFlow()

    private fun prepare(drafter: LoadedModel) {
        var ngrams = ByteArray(0)
        if (options.adapter != null && options.state != null) {
            val store = AdapterStore(options.state.resolve("adapters"))
            val step = TrainingStep(drafter.folder, options.operators, threads = 1).also { this.step = it }
            val plain = BooleanArray(target.model.vocabSize) { target.tokenizer.surface(it) != null }
            val learner = Learner(
                store, options.adapter, drafter.key, target.key, step, plain,
                adapt = drafter.model::setAdapter,
                ngrams = { pairing!!.cache.toBytes() },
            )
            this.learner = learner
            ngrams = learner.storedNgrams
        }
        // The n-grams of an adapter are in its file.
        val folder = options.state?.resolve("ngrams").takeIf { learner == null }
        pairing = Pairing(target, drafter, folder, ngrams, options.state?.resolve("costs")) {
            measureCosts(target.model, drafter.model)
        }
    }

    /**
     * The answer to a conversation, whose last message is the user's.
     *
     * Earlier turns that the KV cache still holds are not read again. Cancelling the collector ends
     * the answer before the next pass of a model, and nothing is learned from it.
     *
     * Throws [OmniDraftException] into the collector, also where [close] ended the answer or came first.
     */
    fun answer(messages: List<Message>, how: AnswerOptions = AnswerOptions()): Flow<Piece> = channelFlow {
        checkOpen()
        withContext(thread) {
            checkOpen() // it may have waited for another answer
            val context = currentCoroutineContext()
            val finished = try {
                generate(messages, how, cancelled = { closing || !context.isActive }) { piece ->
                    trySendBlocking(piece).onFailure { throw CancellationException("nobody collects the answer") }
                }
            } catch (error: OutOfMemoryError) {
                throw inWords(error)
            }
            if (!finished) checkOpen()
        }
    }

    private fun checkOpen() {
        if (closing) throw OmniDraftException("This engine has been closed. Open its models again.")
    }

    /** False: it was cancelled. */

    private fun generate(
        messages: List<Message>, how: AnswerOptions, cancelled: () -> Boolean, emit: (Piece) -> Unit,
    ): Boolean {
        val learner = learner
        counted = Sums()
        roundBegan = 0
        learner?.begin()
        var finished = false
        try {
            val sampling = Sampling(how.temperature, topP = how.topP)
            val pairing = pairing.takeIf { how.draft }
            val drafting = pairing?.let { Drafting(drafter!!.model, it.byCost(how.temperature)) }
            val decoder = SpeculativeDecoder(
                target.model, drafting, sampling, how.seed,
                observer = learner?.let { own -> { generation -> observe(own, generation) } },
            )
            val text = TextStream()
            decoder.generate(
                prompt(messages), how.maxNewTokens, target.tokenizer.eosIds, cancelled,
            ) { round ->
                learner?.let { if (options.heat() == Heat.COOL) it.firstToken() }
                for ((token, origin) in round.tokens.zip(round.origins)) {
                    val ends = token in target.tokenizer.eosIds
                    emit(Piece(token, if (ends) "" else text.push(target.tokenizer.shownBytes(token)), origin))
                }
                count(decoder, drafting != null)
                rest(cancelled)
            }
            text.finish().takeIf(String::isNotEmpty)?.let { emit(Piece(null, it, Origin.FREE)) }
            finished = decoder.finishReason != FinishReason.CANCELLED
        } finally {
            if (finished && learns && how.draft && options.heat() == Heat.COOL) learner?.end() else learner?.abandon()
        }
        now.value = now.value.copy(learningSteps = learner?.progress?.updates ?: 0)
        return finished
    }

    private fun prompt(messages: List<Message>): IntArray {
        val tokenizer = target.tokenizer
        if (messages.isEmpty()) throw OmniDraftException("There is no message to answer.")
        if (tokenizer.hasChatTemplate) return tokenizer.encodeChat(messages)
        val tokens = tokenizer.encode(messages.last().content)
        return if (tokens.isEmpty()) listOfNotNull(tokenizer.bosId).toIntArray() else tokens
    }

    private fun observe(learner: Learner, generation: Generation) {
        if (!learns) return
        val context = generation.context
        generation.shown().forEach { learner.observe(it, context) }
    }

    // What the round added to the last one's sums.
    private fun count(decoder: SpeculativeDecoder, drafts: Boolean) {
        val sums = decoder.statistics
        val (before, last) = now.value to counted
        val proposed = sums.proposed - last.proposed
        val accepted = sums.accepted - last.accepted
        val speed = sums.tokensPerSecond
        now.value = before.copy(
            tokens = before.tokens + sums.tokens - last.tokens,
            rounds = before.rounds + 1,
            proposed = before.proposed + proposed,
            accepted = before.accepted + accepted,
            tokensPerSecond = if (drafts) speed else before.tokensPerSecond,
            plainTokensPerSecond = if (drafts) before.plainTokensPerSecond else speed,
            acceptance = if (proposed == 0) before.acceptance
            else (before.acceptance + accepted.toDouble() / proposed).takeLast(KEPT_ROUNDS),
            ngrams = pairing?.cache?.size ?: 0,
        )
        counted = sums.copy()
    }

    // A hot device computes half of the time.
    private fun rest(cancelled: () -> Boolean) {
        val ended = System.nanoTime()
        var left = if (options.heat() == Heat.HOT && roundBegan > 0) (ended - roundBegan) / 1_000_000 else 0
        while (left > 0 && !cancelled()) {
            Thread.sleep(minOf(left, 50))
            left -= 50
        }
        roundBegan = System.nanoTime()
    }

    /** Let the drafter learn from answers, or let it stay as it is. */
    fun setLearning(on: Boolean) {
        learns = on
    }

    /**
     * Keep what was learned, whole or not at all.
     *
     * @throws OmniDraftException it cannot be written; what was kept before stays.
     */
    suspend fun save() = withContext(thread) { saveNow() }

    private fun saveNow() {
        learner?.takeIf { it.progress.prompts > 0 }?.save() // an adapter of nothing would be in the way
        pairing?.save()
    }

    /**
     * End the answer under way, keep what was learned, and free the models' memory. Waits for the
     * pass that a model is in. Closing it again does nothing.
     *
     * @throws OmniDraftException what was learned cannot be written; the memory is free all the same.
     */
    override fun close() {
        closing = true
        if (executor.isShutdown) return
        try {
            executor.submit {
                val keep = AutoCloseable { pairing?.save() }
                closeAll(listOfNotNull(learner, keep, step, pairing, drafter, target))
            }.get()
        } catch (error: ExecutionException) {
            throw error.cause ?: error
        } finally {
            executor.shutdown()
        }
    }

    companion object {
        /**
         * Open models, whose files are compared with their checksums. At a target's first opening on a
         * device its batch invariance is measured, which takes seconds.
         *
         * @param target folder of a converted model.
         * @param drafter folder of a bundle that `omnidraft export` wrote for the backend onnx or qnn; null:
         *   answers are decoded plainly.
         * Cancelling it ends it soon, and nothing stays open.
         *
         * @throws OmniDraftException what is wrong with a folder, a library, or the memory, in words.
         */
        suspend fun open(target: Path, drafter: Path?, options: EngineOptions = EngineOptions()): Engine {
            val opened = ArrayList<AutoCloseable>()
            try {
                return withContext(Dispatchers.IO) { open(target, drafter, options, opened) { ensureActive() } }
            } catch (error: Throwable) { // also of who was cancelled, and never got the engine
                // An engine closes its models.
                val owned = opened.filter { it is Engine }.ifEmpty { opened }
                runCatching { closeAll(owned) }.onFailure(error::addSuppressed)
                throw inWords(error)
            }
        }

        /** @param opened is given what has to be closed if it fails. */
        private fun open(
            target: Path, drafter: Path?, options: EngineOptions, opened: MutableList<AutoCloseable>, check: () -> Unit,
        ): Engine {
            CoreLibrary.load()
            checkMemory(target, drafter, options)
            fun load(folder: Path, length: Int?, drafts: Boolean) = LoadedModel.open(
                folder, options.operators, options.npuProvider, options.threads, length, options.memory,
                progress = { done, total ->
                    options.progress.at(done, total)
                    check()
                },
                drafts,
            ).also(opened::add)
            val model = load(target, options.contextLength, drafts = false)
            val draft = drafter?.let { load(it, null, drafts = true) }
            val engine = Engine(model, draft, options)
            opened.add(engine)
            if (draft != null) engine.prepare(draft)
            return engine
        }

        // The drafter's first: what is left decides how long the target's context can be.
        private fun checkMemory(target: Path, drafter: Path?, options: EngineOptions) {
            val limit = options.memoryLimit ?: return
            fun need(folder: Path, length: Int?) = OnnxDescription.read(folder, checksums = false).memoryNeed(length)
            val beside = drafter?.let { need(it, DRAFTER_CONTEXT).total } ?: 0
            val other = if (drafter == null) "" else " beside its drafter (${megabytes(beside)})"
            need(target, options.contextLength).check(limit - beside, "The model ${target.fileName}$other")
        }
    }
}
