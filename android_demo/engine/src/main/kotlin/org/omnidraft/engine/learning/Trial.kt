package org.omnidraft.engine.learning

import kotlin.math.max
import kotlin.math.sqrt
import kotlinx.serialization.Serializable

// A difference counts when it is TRUST or DISTRUST times its standard error, over at least FEWEST
// prompts. The first steps of an optimizer may go astray, and two bad prompts in a row are common.
internal const val TRUST = 2.0
internal const val DISTRUST = 2.0
internal const val FEWEST = 8

/** A LoRA must gain this part of the draft tokens over none, for it makes a draft step slower. */
internal const val WORTH = 0.01

/** A prompt's gain counts by this factor less after each further prompt: a candidate changes. */
internal const val FORGETTING = 0.95

/** Prompts after which a candidate that is still not better is given up. */
internal const val PATIENCE = 64

/** Candidates given up in a row after which learning stops. */
internal const val MAX_FAILURES = 3

internal const val DRIFT_WINDOW = 16

/** Learning resumes when acceptance falls below this part of what it was when learning stopped. */
internal const val DRIFT = 0.9

/** What to do with the weights. */
enum class Decision {
    /** Go on learning: make a step of the optimizer. */
    STEP,

    /** The candidate becomes the trusted weights; then make a step. */
    PROMOTE,

    /** The candidate goes back to the trusted weights. */
    ROLL_BACK,

    /** The trusted weights are given up for none, and so is the candidate. */
    WITHDRAW,
}

/**
 * Two sets of weights compared on the same answers.
 *
 * @property prompts how many answers.
 * @property gain draft tokens that only the first set predicts minus those that only the second
 *   does. Recent ones count more ([FORGETTING]), here and below.
 * @property squares the sum of the squares of each prompt's gain: the variance of [gain] if there is
 *   no difference.
 * @property tokens draft tokens of the answers.
 */
@Serializable
data class Trial(
    var prompts: Int = 0,
    var gain: Double = 0.0,
    var squares: Double = 0.0,
    var tokens: Double = 0.0,
) {
    init {
        demandCounts("prompts" to prompts.toDouble(), "squares" to squares, "tokens" to tokens)
    }

    /** One more answer. */
    fun add(gain: Int, tokens: Int) {
        prompts += 1
        this.gain = FORGETTING * this.gain + gain
        squares = FORGETTING * FORGETTING * squares + gain.toDouble() * gain
        this.tokens = FORGETTING * this.tokens + tokens
    }

    /** Whether the first set leads beyond chance, and by [worth] of the tokens at least. */
    fun better(worth: Double): Boolean =
        prompts >= FEWEST && gain > max(TRUST * sqrt(squares), worth * tokens)

    /** Whether its lead is less than [worth] of the tokens, beyond chance. */
    fun shortOf(worth: Double): Boolean =
        prompts >= FEWEST && gain < worth * tokens - TRUST * sqrt(squares)

    /** Whether it is worse beyond chance, or has long been no better. */
    val worse: Boolean
        get() = prompts >= PATIENCE || prompts >= FEWEST && gain < -DISTRUST * sqrt(squares)
}

/**
 * What a trainer has done, and what becomes of a candidate: a state machine of counted tokens. As
 * JSON it is kept with the adapter.
 *
 * It knows no weights and no models; it is told draft tokens, and says what to do with the weights.
 * Acceptance before and after an update would decide by luck, for prompts differ by more than one
 * update changes. Here both sets of weights are compared on the same tokens.
 *
 * @property prompts learned from.
 * @property updates steps of AdamW.
 * @property promotions candidates that became the trusted weights.
 * @property rollbacks candidates that were given up.
 * @property withdrawals trusted weights that were given up.
 * @property failures roll-backs since the last promotion.
 * @property pending prompts whose gradients wait for an update.
 * @property rows the weight of rows whose gradients wait.
 * @property skipped prompts that were not learned from, as too many waited.
 * @property loss what is minimised; null: nothing so far.
 * @property steps of the candidate.
 * @property trial the candidate against the trusted weights.
 * @property defence the trusted weights against the drafter without any.
 * @property stopped learning has stopped helping.
 * @property level the acceptance rate at the time when it stopped.
 * @property recent acceptance rates of the last prompts.
 * @property seconds spent computing.
 * @throws IllegalArgumentException a count is negative or not a number.
 */
@Serializable
data class Progress(
    var prompts: Int = 0,
    var updates: Int = 0,
    var promotions: Int = 0,
    var rollbacks: Int = 0,
    var withdrawals: Int = 0,
    var failures: Int = 0,
    var pending: Int = 0,
    var rows: Double = 0.0,
    var skipped: Int = 0,
    var loss: String? = null,
    var steps: Int = 0,
    var trial: Trial = Trial(),
    var defence: Trial = Trial(),
    var stopped: Boolean = false,
    var level: Double = 0.0,
    var recent: List<Double> = emptyList(),
    var seconds: Double = 0.0,
) {
    init {
        val counts = listOf(
            "prompts" to prompts, "updates" to updates, "promotions" to promotions,
            "rollbacks" to rollbacks, "withdrawals" to withdrawals, "failures" to failures,
            "pending" to pending, "rows" to rows, "skipped" to skipped, "steps" to steps,
            "level" to level, "seconds" to seconds,
        )
        demandCounts(*counts.map { (name, value) -> name to value.toDouble() }.toTypedArray())
    }

    /** A copy that shares nothing that changes. */
    fun snapshot() = copy(trial = trial.copy(), defence = defence.copy())

    /**
     * What becomes of the candidate before its next step.
     *
     * @param used whether the trusted weights are more than none.
     */
    fun decide(used: Boolean): Decision = when {
        used && defence.shortOf(WORTH) -> {
            withdrawals += 1
            rollBack(used = false)
            Decision.WITHDRAW
        }
        trial.better(if (used) 0.0 else WORTH) -> {
            trial = Trial()
            promotions += 1
            failures = 0
            Decision.PROMOTE
        }
        trial.worse -> {
            rollBack(used)
            Decision.ROLL_BACK
        }
        else -> Decision.STEP
    }

    /** The optimizer has made the candidate's step of this number. */
    fun stepped(steps: Int) {
        this.steps = steps
        updates += 1
        pending = 0
        rows = 0.0
    }

    /** A candidate without a past begins at the trusted weights. */
    fun startOver(used: Boolean) {
        steps = 0
        trial = Trial()
        if (!used) defence = Trial()
        pending = 0
        rows = 0.0
    }

    /** The candidate was given up; after [MAX_FAILURES] in a row learning stops. */
    fun rollBack(used: Boolean) {
        rollbacks += 1
        failures += 1
        startOver(used)
        if (failures >= MAX_FAILURES) {
            stopped = true
            level = if (recent.isEmpty()) 0.0 else recent.average()
            recent = emptyList()
        }
    }

    /** Learn again where learning had stopped. */
    fun resume() {
        stopped = false
        failures = 0
    }

    /** Follow the acceptance of an answer; resume where it has fallen since learning stopped. */
    fun watch(accepted: Int, proposed: Int) {
        if (proposed == 0) return
        recent = (recent + accepted.toDouble() / proposed).takeLast(DRIFT_WINDOW)
        if (stopped && recent.size == DRIFT_WINDOW) {
            val mean = recent.average()
            val deviation = sqrt(recent.map { (it - mean) * (it - mean) }.average())
            val error = deviation / sqrt(DRIFT_WINDOW.toDouble())
            if (mean < DRIFT * level && mean < level - 2 * error) resume()
        }
    }
}

private fun demandCounts(vararg values: Pair<String, Double>) {
    for ((name, value) in values) {
        // Not a number compares with nothing, and is refused too.
        require(value >= 0) { "$name must be at least 0, not $value" }
    }
}
