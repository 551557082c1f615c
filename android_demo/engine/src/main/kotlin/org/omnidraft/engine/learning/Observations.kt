package org.omnidraft.engine.learning

import kotlin.math.max
import org.omnidraft.engine.core.Shown

/** Bytes that [Observations] keeps at most. */
const val DEFAULT_MAX_BYTES = 64_000_000L

/** Context that a row sees at most. Long prompts would otherwise cost memory with their square. */
internal const val WINDOW = 512

/** Of a round that is kept, in bytes. */
private const val ROUND_BYTES = 200

/**
 * A round as it is kept.
 *
 * @property begin draft tokens of the sequence before the draft.
 * @property counts draft tokens of each proposed target token.
 * @property accepted how many of these stood.
 * @property last the target token that ended the round.
 * @property end draft tokens of the sequence after [last]; −1 where that was not seen any more.
 */
class ObservedRound internal constructor(
    val begin: Int,
    val counts: IntArray,
    val accepted: Int,
    val last: Int,
) {
    var end: Int = -1
        internal set

    /** Draft tokens that stood. */
    val stood: Int = (0 until accepted).sumOf { counts[it] }
}

/** A prompt and its answer as draft tokens, and the rounds that made it; of these the last ones. */
class ObservedPrompt internal constructor() {
    internal val tokens = TokenList()
    internal val kept = ArrayDeque<ObservedRound>()
    val rounds: List<ObservedRound> get() = kept

    /** Target tokens that were proposed, and of these those that stood. */
    var proposed = 0
        internal set
    var accepted = 0
        internal set

    /** Bytes that are kept of it. */
    var bytes = 0L
        internal set
}

/**
 * Keeps what rounds teach the drafter, at most [maxBytes] of it: the oldest goes first.
 *
 * The loss is the cross-entropy with what the target said, so a round is kept as tokens alone. A
 * prompt is one sequence of draft tokens, and beside it lies the end of each round's draft. Used by
 * one thread; a prompt that [endPrompt] gave changes no more.
 */
class Observations(private val maxBytes: Long = DEFAULT_MAX_BYTES) {
    private val all = ArrayDeque<ObservedPrompt>()
    private var open = listOf<ObservedPrompt>() // parts of one prompt; the last goes on
    private var dropped = 0 // tokens of the open prompt's context that are not kept
    private var seen = 0 // length of its context at the last round

    val prompts: List<ObservedPrompt> get() = all

    /** Bytes that are kept. */
    var bytes = 0L
        private set

    /**
     * Take a round.
     *
     * @param context draft tokens that stand for the text: what was settled of the generation so far
     *   stands in its first [Shown.context] places.
     */
    fun observe(shown: Shown, context: IntArray) {
        require(shown.context <= context.size) {
            "a round after ${shown.context} tokens of a context of ${context.size}"
        }
        if (shown.context == 0) return
        if (open.isEmpty() || shown.context < seen) {
            // New, or the drafter has dropped the older half of a long context.
            val part = ObservedPrompt()
            open = open + part
            all.addLast(part)
            dropped = max(0, shown.context - WINDOW)
            seen = dropped
        }
        val prompt = open.last()
        val before = prompt.tokens.bytes
        prompt.tokens.add(context, dropped + prompt.tokens.size, shown.context)
        seen = shown.context
        prompt.kept.lastOrNull()?.let { if (it.end < 0) it.end = prompt.tokens.size }
        val round = ObservedRound(prompt.tokens.size, shown.counts, shown.accepted, shown.last)
        prompt.tokens.add(shown.drafts, 0, round.stood)
        prompt.kept.addLast(round)
        prompt.proposed += shown.counts.size
        prompt.accepted += shown.accepted
        val grown = ROUND_BYTES + prompt.tokens.bytes - before
        prompt.bytes += grown
        bytes += grown
        shrink()
    }

    /** The answer is over; what was kept of it, in parts where the drafter's context was cut. */
    fun endPrompt(): List<ObservedPrompt> = open.also { open = emptyList() }

    /** The answer was broken off: nothing of it is kept. */
    fun discardPrompt() {
        val parts = endPrompt()
        all.removeAll { prompt -> parts.any { it === prompt } }
        bytes = all.sumOf { it.bytes }
    }

    private fun shrink() {
        while (bytes > maxBytes) {
            val oldest = all.first()
            if (all.size > 1) {
                bytes -= all.removeFirst().bytes
                open = open.filter { it !== oldest }
            } else if (oldest.kept.isNotEmpty()) {
                oldest.kept.removeFirst()
                oldest.bytes -= ROUND_BYTES
                bytes -= ROUND_BYTES
            } else {
                return
            }
        }
    }
}

/**
 * A list of tokens that grows by a sixteenth, as many lie in memory at once.
 *
 * It grows as CPython's `array` does, so that the same rounds are kept here and there.
 */
internal class TokenList {
    private var values = IntArray(0)
    var size = 0
        private set

    val bytes: Long get() = values.size.toLong() * Int.SIZE_BYTES

    operator fun get(place: Int): Int {
        if (place >= size) throw IndexOutOfBoundsException("$place of $size")
        return values[place]
    }

    /** Add what [source] holds from [begin] to [end]; nothing where that is empty. */
    fun add(source: IntArray, begin: Int, end: Int) {
        for (place in begin until end) {
            if (size == values.size) {
                val grown = size + 1
                values = values.copyOf((grown shr 4) + (if (size < 8) 3 else 7) + grown)
            }
            values[size++] = source[place]
        }
    }
}
