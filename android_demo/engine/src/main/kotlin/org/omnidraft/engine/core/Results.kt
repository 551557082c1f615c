package org.omnidraft.engine.core

/**
 * A pass of a model.
 *
 * @param held tokens that its KV cache must hold before; where it holds more, it is cut.
 * @param parents null: each token follows the one before. For a pass over nodes of a tree, of each
 *   token the slot of the KV cache that it follows.
 * @param rows of logits that are wanted: those of the last tokens.
 */
class Pass(val held: Int, val tokens: IntArray, val parents: IntArray?, val rows: Int)

/** What a round leaves in a KV cache. */
sealed interface Kept {
    /** What it holds. */
    data object All : Kept

    /** Its first [length] tokens. */
    data class Length(val length: Int) : Kept

    /** Of the tree behind the text the nodes in the slots of [path], from the text downwards. */
    class Path(val path: IntArray) : Kept
}

/** How a token of an answer came about. */
enum class Origin {
    /** Drafted and accepted, one draft token. */
    DIRECT,

    /** Drafted and accepted, an n-gram of the cache. */
    MERGED,

    /** The target's choice where the proposal was rejected. */
    CORRECTED,

    /** The target's own next token after all that was proposed. */
    FREE,

    /** Looked up and accepted. */
    LOOKUP,
}

/**
 * What a pass of the target says.
 *
 * @param tokens of this round, at least one.
 * @param origins of each.
 * @param proposed target tokens that were scored.
 * @param accepted of those, the ones that stand: `tokens` are one more.
 * @param acceptedDrafts draft tokens that spell them.
 * @param merged n-grams among the proposed.
 * @param mergedAccepted of those, the ones that stand.
 * @param ended whether the last token is an end-of-text token.
 */
class Verdict(
    val tokens: IntArray,
    val origins: List<Origin>,
    val proposed: Int,
    val accepted: Int,
    val acceptedDrafts: Int,
    val merged: Int,
    val mergedAccepted: Int,
    val ended: Boolean,
)

/**
 * How a round ended.
 *
 * @param target what to leave in the target's KV cache; drafter: in the drafter's.
 * @param draftTokens that were drawn; of a tree those that spell what was proposed.
 * @param inserted n-grams, into the cache.
 */
class Settled(val target: Kept, val drafter: Kept, val draftTokens: Int, val inserted: Int)

/**
 * What was proposed in a round.
 *
 * @param parents of each token the one that it follows; −1: the text.
 */
class Proposed(val tokens: IntArray, val parents: IntArray)

/**
 * One path of a round, for what learns from it: the drafted tokens that the target took, and on by
 * the drafter's most probable ones where it left the draft. A token that the target took further on,
 * behind one that was looked up, is shown by itself, as a round without a draft.
 *
 * @param context draft tokens of [Generation.context] before the draft.
 * @param tokens the m drafted target tokens.
 * @param drafts that spell them; behind them those of an unfinished one.
 * @param counts how many draft tokens spell each.
 * @param accepted of the m tokens, the first ones that stood.
 * @param last that the target took after those.
 * @param rows m + 1 of the target's logits: row i follows the i-th token.
 * @param draftNodes of a tree, those on the path that the drafter ran on: see
 *   [Generation.passNodes].
 */
class Shown(
    val context: Int,
    val tokens: IntArray,
    val drafts: IntArray,
    val counts: IntArray,
    val accepted: Int,
    val last: Int,
    val rows: IntArray,
    val draftNodes: IntArray,
)

/** Takes apart what native methods give: ints behind one another. */
internal class Ints(private val values: IntArray) {
    private var next = 0

    fun one(): Int = values[next++]

    fun some(count: Int): IntArray = values.copyOfRange(next, next + count).also { next += count }

    fun pass(): Pass {
        val held = one()
        val rows = one()
        val count = one()
        val inTree = one() != 0
        return Pass(held, some(count), if (inTree) some(count) else null, rows)
    }

    fun verdict(): Verdict {
        val (proposed, accepted, drafts, merged, mergedAccepted) = some(5)
        val ended = one() != 0
        val count = one()
        return Verdict(
            some(count), some(count).map { Origin.entries[it] }, proposed, accepted, drafts, merged,
            mergedAccepted, ended,
        )
    }

    fun kept(): Kept {
        val (kind, length, count) = some(3)
        val path = some(count)
        return when (kind) {
            0 -> Kept.All
            1 -> Kept.Length(length)
            else -> Kept.Path(path)
        }
    }

    fun settled(): Settled {
        val (draftTokens, inserted) = some(2)
        return Settled(kept(), kept(), draftTokens, inserted)
    }

    fun shown(): Shown {
        val (context, accepted, last) = some(3)
        val (count, drafts, rows, nodes) = some(4)
        val tokens = some(count)
        val counts = some(count)
        return Shown(
            context, tokens, some(drafts), counts, accepted, last, some(rows), some(nodes)
        )
    }
}
