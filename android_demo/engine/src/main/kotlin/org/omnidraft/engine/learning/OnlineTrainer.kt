package org.omnidraft.engine.learning

import java.util.Random
import kotlin.concurrent.withLock
import kotlin.math.max
import kotlin.math.pow
import kotlin.math.sqrt
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.models.LoraWeights
import org.omnidraft.engine.models.Matrix

const val DEFAULT_RANK = 32

/** What is minimised: the cross-entropy of the answers' draft tokens. */
internal const val LOSS = "ce"

/**
 * How a drafter learns.
 *
 * @property rank of the LoRA.
 * @property learningRate AdamW's.
 * @property interval prompts for an update.
 * @property budget at most this share of the time is computed, 0 < budget ≤ 1; 0 does not learn.
 * @property seed of A's random start.
 */
data class LearningOptions(
    val rank: Int = DEFAULT_RANK,
    val learningRate: Double = 1e-3,
    val interval: Int = 4,
    val budget: Double = 1.0,
    val seed: Long = 0,
) {
    init {
        require(rank > 0) { "the rank must be at least 1, not $rank" }
        require(learningRate > 0) { "the learning rate must be above 0, not $learningRate" }
        require(interval > 0) { "the interval must be at least 1 prompt, not $interval" }
        require(budget in 0.0..1.0) { "the budget must lie in 0…1, not $budget" }
    }
}

/**
 * What a trainer has learned, and what it goes on with.
 *
 * @property lora the weights to draft with, empty for none.
 * @property arrays by names `candidate.…`, `first.…`, `second.…` and `gradients.…` of every factor;
 *   empty: there is nothing to go on with.
 */
class TrainerState(val lora: LoraWeights, val arrays: LoraWeights, val progress: Progress) {
    companion object {
        /** Nothing was learned yet. */
        fun none() = TrainerState(emptyMap(), emptyMap(), Progress())
    }
}

/**
 * Online learning: the drafter's LoRA is trained on what the rounds of every answer showed.
 *
 *     trainer.add(observations.endPrompt())              // after every answer
 *     trainer.take()?.let { drafter.setAdapter(it) }     // before the next
 *
 * Two sets of weights are kept. The trusted one drafts. The candidate learns: gradients of its loss
 * are added up prompt by prompt, and every `interval` prompts AdamW makes a step. Each prompt is a
 * test before it is a lesson: how many draft tokens of the target's answer do both sets predict? What
 * becomes of them then is decided by [Progress].
 *
 * @param step of the drafter.
 * @param plain of each target token, whether it has a surface.
 * @param state as [state] gave it.
 * @param background learn on a thread; otherwise [add] returns when it has learned.
 * @param untrained the weights to begin with, which must change nothing.
 * @throws DamagedFileException the state is not whole.
 */
class OnlineTrainer(
    private val step: LearningStep,
    private val plain: BooleanArray,
    private val options: LearningOptions = LearningOptions(),
    state: TrainerState = TrainerState.none(),
    background: Boolean = false,
    private val untrained: LoraWeights = untrainedLora(step.loraSizes, options.rank, options.seed),
) : Worker<List<ObservedPrompt>>(options.budget) {
    private val done = state.progress.snapshot()
    private var used = state.lora.isNotEmpty() // whether the trusted weights are more than a beginning
    private var fresh = false // the trusted weights changed since they were last taken
    private var trusted = untrained + state.lora
    private var candidate = trusted
    private var optimizer = AdamW(candidate, learningRate())
    private var gradients = zeros()

    init {
        if (state.arrays.isNotEmpty()) restore(state.arrays)
        if (done.loss != null && done.loss != LOSS) {
            // Another loss's gradients have other sizes, and may want the candidate elsewhere.
            done.startOver(used)
            startOver()
        }
        done.loss = LOSS
        if (background) start()
    }

    // --- from the thread that answers -----------------------------------------------------------

    /** What it has done so far. */
    val progress: Progress get() = lock.withLock { done.snapshot() }

    /**
     * Learn from an answer and its prompt, now or soon; after [close] no more. Of many that wait the
     * oldest are left out.
     *
     * @throws Throwable whatever ended the learning thread.
     */
    fun add(prompt: List<ObservedPrompt>) {
        val useful = options.budget > 0 && prompt.any { it.rounds.isNotEmpty() }
        if (useful && put(prompt)) lock.withLock { done.skipped += 1 }
    }

    /** Learn again where learning had stopped. */
    fun resumeLearning() = lock.withLock { done.resume() }

    /** The weights to draft with if they changed since this was last called; empty: none. */
    fun take(): LoraWeights? = lock.withLock {
        if (fresh) inUse().also { fresh = false } else null
    }

    /** The weights to draft with, and what to go on with. */
    fun state(): TrainerState = lock.withLock {
        val arrays = parts().flatMap { (part, values) ->
            values.map { (name, matrix) -> "$part.$name" to matrix.copy() }
        }
        TrainerState(inUse(), arrays.toMap(), done.snapshot())
    }

    // --- learning -------------------------------------------------------------------------------

    private fun parts(): Map<String, LoraWeights> = mapOf(
        "candidate" to candidate,
        "first" to optimizer.first,
        "second" to optimizer.second,
        "gradients" to gradients,
    )

    private fun inUse(): LoraWeights = if (used) trusted else emptyMap()

    private fun restore(arrays: LoraWeights) {
        fun part(part: String): LoraWeights = untrained.mapValues { (name, expected) ->
            val stored = arrays["$part.$name"]
            if (stored == null || stored.rows != expected.rows || stored.columns != expected.columns) {
                throw DamagedFileException(
                    "The adapter's learning state lacks a whole $part.$name. Delete the adapter and " +
                        "learn it again."
                )
            }
            stored.copy()
        }
        candidate = part("candidate")
        optimizer.first = part("first")
        optimizer.second = part("second")
        gradients = part("gradients")
        optimizer.steps = done.steps
    }

    override fun spent(seconds: Double) {
        done.seconds += seconds
    }

    /** Learn from an answer and its prompt. */
    override fun work(item: List<ObservedPrompt>) {
        val stopped = lock.withLock {
            done.watch(item.sumOf { it.accepted }, item.sumOf { it.proposed })
            done.stopped
        }
        if (stopped) return
        val total = zeros()
        var gain = 0
        var lead = 0
        var compared = 0
        var rows = 0
        val tried = optimizer.steps > 0
        val defended = used
        for (batch in batches(item, plain)) {
            val result = compute { stop -> step.run(batch.training, candidate, stop) }
            total.add(result.gradients)
            rows += batch.training.rows.size
            if (!(tried || defended) || batch.answer.isEmpty()) continue
            val right = right(batch, trusted)
            compared += batch.answer.size
            val best = IntArray(batch.answer.size) { result.best[batch.answerRows[it]] }
            gain += same(best, batch.answer) - right
            if (defended) lead += right - right(batch, untrained)
        }
        lock.withLock {
            if (!total.values.all { gradient -> gradient.values.all { it.isFinite() } }) {
                // Diverged: nothing can be learned from where the candidate is.
                done.rollBack(used)
                startOver()
                return
            }
            gradients.add(total)
            done.prompts += 1
            done.pending += 1
            done.rows += rows
            if (tried) done.trial.add(gain, compared)
            if (defended) done.defence.add(lead, compared)
            if (done.pending >= options.interval) update()
        }
    }

    /** How many draft tokens of an answer the drafter predicts with [weights]. */
    private fun right(batch: LearningBatch, weights: LoraWeights): Int {
        val training = batch.training
        val rows = IntArray(batch.answerRows.size) { training.rows[batch.answerRows[it]] }
        val test = TrainingBatch(training.tokens, rows, training.positions, training.mask)
        return same(compute { stop -> step.best(test, weights, stop) }, batch.answer)
    }

    private fun update() {
        val decision = done.decide(used)
        if (decision == Decision.WITHDRAW) {
            trusted = untrained
            used = false
            fresh = true
        }
        if (decision == Decision.WITHDRAW || decision == Decision.ROLL_BACK) {
            startOver()
            return
        }
        if (decision == Decision.PROMOTE) {
            trusted = candidate
            used = true
            fresh = true
        }
        val scale = (1 / max(done.rows, 1.0)).toFloat()
        val mean = gradients.mapValues { (_, gradient) ->
            val values = FloatArray(gradient.values.size) { gradient.values[it] * scale }
            Matrix(gradient.rows, gradient.columns, values)
        }
        optimizer.learningRate = learningRate()
        candidate = optimizer.step(candidate, mean)
        done.stepped(optimizer.steps)
        gradients = zeros()
    }

    /** Smaller after every failure: too long a step is the likeliest reason for one. */
    private fun learningRate(): Double = options.learningRate / 2.0.pow(done.failures)

    /** The candidate is what is trusted, and has no past. */
    private fun startOver() {
        candidate = trusted
        optimizer = AdamW(candidate, learningRate())
        gradients = zeros()
    }

    private fun zeros(): LoraWeights = untrained.mapValues { (_, w) -> Matrix(w.rows, w.columns) }
}

/** A is random and small, B is 0: at first the drafter is itself (LoRA, arXiv 2106.09685). */
internal fun untrainedLora(sizes: Map<String, Int>, rank: Int, seed: Long): LoraWeights {
    val random = Random(seed)
    return sizes.mapValues { (name, size) ->
        if (name.endsWith(".A")) {
            val scale = 1 / sqrt(size.toDouble())
            Matrix(size, rank, FloatArray(size * rank) { (scale * random.nextGaussian()).toFloat() })
        } else {
            Matrix(rank, size)
        }
    }
}

private fun LoraWeights.add(other: LoraWeights) {
    for ((name, sum) in this) {
        val added = other.getValue(name).values
        for (i in added.indices) sum.values[i] += added[i]
    }
}

private fun same(left: IntArray, right: IntArray) = left.indices.count { left[it] == right[it] }
