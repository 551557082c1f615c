package org.omnidraft.engine.learning

import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.models.LoraWeights

/**
 * What an adapter's file holds of learning.
 *
 * @property ngrams the n-gram cache, as the native core writes it; empty: none.
 */
class Learned(val state: TrainerState, val ngrams: ByteArray)

/** An adapter's file: whose adapter it is, and what that has learned. */
interface AdapterFormat {
    /** @throws OmniDraftException the adapter does not hold together, as when learning diverged. */
    fun write(learned: Learned): ByteArray

    /**
     * @throws DamagedFileException it is no whole adapter.
     * @throws OmniDraftException it belongs to other models, or a newer version wrote it.
     */
    fun read(content: ByteArray): Learned
}

/**
 * A drafter with an adapter: loaded from its file, in use, learning, saved.
 *
 *     learner.begin()                              // before a prompt is read
 *     ...
 *     learner.firstToken()                         // the answer has begun
 *     learner.observe(shown, generation.context)   // after every round
 *     learner.end()                                // or abandon(), of an answer broken off
 *
 * Used by one thread.
 *
 * @param folder where adapters are kept.
 * @param name of this one; one that does not exist yet begins.
 * @param format of its file.
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
    private val folder: AdapterFolder,
    private val name: String,
    private val format: AdapterFormat,
    step: LearningStep,
    plain: BooleanArray,
    options: LearningOptions = LearningOptions(),
    background: Boolean = true,
    private val adapt: (LoraWeights?) -> Unit,
    private val ngrams: () -> ByteArray,
) : AutoCloseable {
    private val observations = Observations()
    private val trainer: OnlineTrainer

    /** The n-gram cache that the adapter began with; empty: none. */
    val storedNgrams: ByteArray

    /** Answers change no weights while it is set. */
    var paused = false

    private var saved: Pair<Int, Int>
    private var answered = false

    init {
        val learned = folder.read(name)?.let(format::read)
        storedNgrams = learned?.ngrams ?: ByteArray(0)
        val state = learned?.state?.let {
            // Counts of a candidate that is not there would let it be trusted untried.
            if (it.arrays.isEmpty()) TrainerState(it.lora, it.arrays, Progress()) else it
        } ?: TrainerState.none()
        adapt(state.lora.ifEmpty { null }) // an error now, not at the first prompt
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
     * @throws OmniDraftException see [save].
     */
    fun end() {
        if (paused) return abandon()
        trainer.resume()
        trainer.add(observations.endPrompt())
        answered = true
        if (changes(trainer.progress) != saved) save()
    }

    /**
     * Keep everything learned so far.
     *
     * @throws OmniDraftException it cannot be saved; what was stored stays.
     */
    fun save() {
        val state = trainer.state()
        folder.save(name, format.write(Learned(state, ngrams())))
        saved = changes(state.progress)
    }

    /** Learn from what is waiting, and save; see [save]. */
    fun finish() {
        trainer.drain()
        save()
    }

    /** End learning and save; what is still waiting is forgotten. Without an answer nothing begins. */
    override fun close() {
        trainer.close()
        if (answered) save()
    }

    private fun changes(progress: Progress) = progress.updates to progress.rollbacks
}
