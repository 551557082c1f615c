package org.omnidraft.engine.learning

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.decodeFromJsonElement
import kotlinx.serialization.json.encodeToJsonElement
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.core.Shown
import org.omnidraft.engine.models.LoraWeights
import org.omnidraft.engine.models.Matrix

// Among an adapter's figures.
private const val FIGURE = "learning"
private const val HEAD_FIGURE = "head"

// Python writes every field; what a newer version adds is left out.
private val json = Json {
    encodeDefaults = true
    ignoreUnknownKeys = true
}

/**
 * A drafter with an adapter: loaded from a store, in use, learning, saved.
 *
 *     learner.begin()                              // before a prompt is read
 *     ...
 *     learner.firstToken()                         // the answer has begun
 *     learner.observe(shown, generation.context)   // after every round
 *     learner.end()                                // or abandon(), of an answer broken off
 *
 * Used by one thread. An acceptance head that the adapter has is dropped at the first save: none is
 * trained here, and it would not follow what the LoRA learns.
 *
 * @param store where the adapter is kept.
 * @param name of it; one that does not exist yet begins.
 * @param drafter the models it belongs to: this and [target].
 * @param step of the drafter.
 * @param plain of each target token, whether it has a surface.
 * @param options an adapter that is there keeps its rank.
 * @param background learn on a thread beside the answers, or between them.
 * @param adapt lets the drafter use weights, null for none: its `setAdapter`.
 * @param ngrams what the n-gram cache holds now.
 * @throws DamagedFileException the file is no whole adapter.
 * @throws OmniDraftException it cannot be read, belongs to other models or does not fit the drafter.
 */
class Learner(
    private val store: AdapterStore,
    private val name: String,
    drafter: ModelKey,
    target: ModelKey,
    step: LearningStep,
    plain: BooleanArray,
    options: LearningOptions = LearningOptions(),
    background: Boolean = true,
    private val adapt: (LoraWeights?) -> Unit,
    private val ngrams: () -> ByteArray,
) : AutoCloseable {
    private val observations = Observations()
    private val trainer: OnlineTrainer
    private var metadata: AdapterMetadata

    /** The n-gram cache that the adapter began with; empty: none. */
    val storedNgrams: ByteArray

    /** Answers change no weights while it is set. */
    var paused = false

    private var saved: Pair<Int, Int>
    private var answered = false

    init {
        val adapter = try {
            store.load(name, drafter, target)
        } catch (_: ModelNotFoundException) {
            Adapter(AdapterMetadata(drafter = drafter, target = target))
        }
        metadata = adapter.metadata
        storedNgrams = adapter.ngrams
        adapt(adapter.lora.ifEmpty { null }) // an error now, not at the first prompt
        val state = TrainerState(adapter.lora, matrices(adapter.optimizer), progress(adapter))
        val rank = (state.lora + state.arrays).entries.firstOrNull { it.key.endsWith(".A") }?.value?.columns
        val own = if (rank == null) options else options.copy(rank = rank)
        trainer = OnlineTrainer(step, plain, own, state, background)
        saved = changes(trainer.progress)
    }

    /** What learning has done so far. */
    val progress: Progress get() = trainer.progress

    /** Before a prompt is read: learning pauses, and what was learned comes into use. */
    fun begin() {
        trainer.pause()
        trainer.take()?.let { adapt(it.ifEmpty { null }) }
    }

    /** The answer has begun: learning may go on. */
    fun firstToken() = trainer.resume()

    /** Take a round, see [Observations.observe]. */
    fun observe(shown: Shown, context: IntArray) = observations.observe(shown, context)

    /** The answer was broken off: nothing is learned from it, and nothing is saved. */
    fun abandon() {
        observations.discardPrompt()
        trainer.resume()
    }

    /**
     * The answer was made to its end: learn from it, and save an update.
     *
     * @return see [save].
     * @throws OmniDraftException see [save].
     */
    fun end(): List<String> {
        if (paused) {
            abandon()
            return emptyList()
        }
        trainer.resume()
        trainer.add(observations.endPrompt())
        answered = true
        return if (changes(trainer.progress) == saved) emptyList() else save()
    }

    /**
     * Keep everything learned so far.
     *
     * @return the names of the adapters that were removed to make room.
     * @throws OmniDraftException it cannot be saved; what was stored stays.
     */
    fun save(): List<String> {
        val state = trainer.state()
        val figure = json.encodeToJsonElement(state.progress)
        metadata = metadata.copy(
            prompts = state.progress.prompts,
            updates = state.progress.updates,
            figures = JsonObject(metadata.figures - HEAD_FIGURE + (FIGURE to figure)),
        )
        val optimizer = state.arrays.mapValues { (_, it) -> NumberArray.of(it.values, it.rows, it.columns) }
        val removed = store.save(name, Adapter(metadata, state.lora, ngrams(), optimizer = optimizer))
        saved = changes(state.progress)
        return removed
    }

    /** Learn from what is waiting, and save; see [save]. */
    fun finish(): List<String> {
        trainer.drain()
        return save()
    }

    /** End learning and save; what is still waiting is forgotten. Without an answer nothing begins. */
    override fun close() {
        trainer.close()
        if (answered) save()
    }

    private fun changes(progress: Progress) = progress.updates to progress.rollbacks

    /** The LoRA's part of the optimizer's state. */
    private fun matrices(arrays: Map<String, NumberArray>): LoraWeights =
        arrays.filterValues { it.dtype == "F32" && it.shape.size == 2 }
            .filterKeys { ".lora." in it }
            .mapValues { (_, it) -> Matrix(it.shape[0], it.shape[1], it.floats()) }

    private fun progress(adapter: Adapter): Progress {
        // Without the candidate its counts would let another be trusted untried.
        val figure = adapter.metadata.figures[FIGURE].takeIf { adapter.optimizer.isNotEmpty() }
        try {
            return if (figure == null) Progress() else json.decodeFromJsonElement(figure)
        } catch (error: IllegalArgumentException) {
            throw DamagedFileException(
                "The figures of adapter '$name' cannot be read: ${error.message?.lineSequence()?.first()}. " +
                    "Delete the adapter and learn it again.",
                error,
            )
        }
    }
}
