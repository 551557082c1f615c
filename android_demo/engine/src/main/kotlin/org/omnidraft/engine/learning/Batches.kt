package org.omnidraft.engine.learning

import kotlin.math.max

// Bounds on a batch: rows take a vocabulary of floats each, several times.
private const val MAX_ROWS = 256
private const val MAX_TOKENS = 1024

/** Added to an attention score, it hides a position. */
private const val MASKED = -1e30f

/**
 * A batch of the training step, and which of its rows lie on the target's answer.
 *
 * @property answerRows `[A]` rows that follow a token of the answer, or the prompt's last.
 * @property answer `[A]` the draft tokens that came there.
 */
class LearningBatch(val training: TrainingBatch, val answerRows: IntArray, val answer: IntArray)

/**
 * Everything these prompts teach, in batches of at most about [MAX_ROWS] rows, made one by one.
 *
 * Every draft token of the answer is a label. A row sees at most [WINDOW] tokens of the prompt before
 * the batch's first row.
 *
 * @param plain of each target token, whether it has a surface: no draft token spells the others.
 */
fun batches(prompts: List<ObservedPrompt>, plain: BooleanArray): Sequence<LearningBatch> = sequence {
    var builder = Builder(plain)
    for (prompt in prompts) {
        var first = 0
        while (first < prompt.rounds.size) {
            val last = builder.fitting(prompt.rounds, first)
            if (last == first) {
                yield(builder.build())
                builder = Builder(plain)
                continue
            }
            builder.add(prompt, first, last)
            first = last
        }
    }
    if (!builder.isEmpty()) yield(builder.build())
}

/** A batch in the making. */
private class Builder(private val plain: BooleanArray) {
    private val tokens = ArrayList<Int>()
    private val positions = ArrayList<Int>()
    private val runs = ArrayList<IntRange>() // of tokens, each seeing itself alone
    private val rows = ArrayList<Int>()
    private val labels = ArrayList<Int>()
    private val weights = ArrayList<Float>()
    private val answerRows = ArrayList<Int>()
    private val answer = ArrayList<Int>()

    fun isEmpty() = rows.isEmpty()

    /** The end of the rounds from [first] on that this batch has room for. */
    fun fitting(rounds: List<ObservedRound>, first: Int): Int {
        val low = max(0, rounds[first].begin - WINDOW)
        var count = rows.size
        var last = first
        while (last < rounds.size) {
            val round = rounds[last]
            // A row for each draft token and one more; the last token's n-gram may add a few.
            count += round.stood + 2
            val length = tokens.size + round.begin + round.stood - low
            if ((count > MAX_ROWS || length > MAX_TOKENS) && (last > first || !isEmpty())) break
            last += 1
        }
        return last
    }

    fun add(prompt: ObservedPrompt, first: Int, last: Int) {
        val rounds = prompt.rounds
        val low = max(0, rounds[first].begin - WINDOW)
        val high = if (last < rounds.size) rounds[last].begin else prompt.tokens.size
        val start = tokens.size
        for (place in low until high) {
            tokens += prompt.tokens[place]
            positions += place - low
        }
        runs += start until tokens.size
        for (index in first until last) add(prompt, rounds[index], start - low)
    }

    private fun add(prompt: ObservedPrompt, round: ObservedRound, shift: Int) {
        var begin = round.begin
        for (j in 0..round.accepted) {
            val row = row(begin - 1 + shift)
            val end = if (j < round.accepted) begin + round.counts[j] else round.end
            if (end > begin) {
                answerRows += row
                answer += prompt.tokens[begin]
                if (j < round.accepted || plain[round.last]) {
                    label(row, prompt.tokens[begin])
                    for (place in begin + 1 until end) {
                        label(row(place - 1 + shift), prompt.tokens[place])
                    }
                }
            }
            if (j < round.accepted) begin = end
        }
    }

    private fun row(position: Int): Int {
        rows += position
        labels += 0
        weights += 0f
        return rows.size - 1
    }

    private fun label(row: Int, token: Int) {
        labels[row] = token
        weights[row] = 1f
    }

    fun build(): LearningBatch {
        val count = tokens.size
        val mask = FloatArray(count * count) { MASKED }
        for (run in runs) {
            for (place in run) mask.fill(0f, place * count + run.first, place * count + place + 1)
        }
        val training = TrainingBatch(
            tokens = tokens.toIntArray(),
            rows = rows.toIntArray(),
            positions = positions.toIntArray(),
            mask = mask,
            label = labels.toIntArray(),
            labelWeight = weights.toFloatArray(),
        )
        return LearningBatch(training, answerRows.toIntArray(), answer.toIntArray())
    }
}
