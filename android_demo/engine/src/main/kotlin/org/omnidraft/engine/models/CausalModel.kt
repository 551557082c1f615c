package org.omnidraft.engine.models

import java.nio.FloatBuffer
import org.omnidraft.engine.ContextOverflowException
import org.omnidraft.engine.OmniDraftException

/**
 * A causal language model with one sequence in its KV cache.
 *
 * One instance serves one thread. [forward] appends, [truncate] drops the tail in O(1). Slots of the
 * cache are numbered from 0. A tree of tokens may grow behind the text: see [forwardTree].
 */
interface CausalModel : AutoCloseable {
    /** Number of columns of the logits. */
    val vocabSize: Int

    /** Number of tokens in the KV cache, those of a tree among them. */
    val length: Int

    /** Longest sequence the model can hold, in tokens. */
    val maxLength: Int

    /** The tokens in the KV cache, in order; while a tree is held, those before the tree. A copy. */
    val held: IntArray

    /** Whether [forwardTree] works. */
    val scoresTrees: Boolean

    /**
     * Append [tokens] to the KV cache and return logits.
     *
     * @param tokens n ≥ 1 token ids.
     * @param rows return the logits of the last [rows] tokens only.
     * @return float32 `[rows, vocabSize]`, row by row, from position 0 to the limit: a direct
     *   buffer's view, which the next pass overwrites. Row i holds the logits of the token that
     *   follows the i-th of the tokens it belongs to.
     * @throws ContextOverflowException `length + n > maxLength`; the cache is unchanged.
     * @throws IllegalArgumentException no tokens, a token outside the vocabulary, or [rows] outside
     *   1…n.
     * @throws IllegalStateException a tree is held.
     * @throws OmniDraftException the engine failed.
     */
    fun forward(tokens: IntArray, rows: Int = tokens.size): FloatBuffer

    /**
     * Append nodes to the tree, which the first call begins, and return logits.
     *
     * A node sees the text, its ancestors in the order of its path, and itself; its position is its
     * depth behind the text. The tree is held until [keep], or a [truncate] to within the text.
     *
     * @param tokens n ≥ 1 token ids. They take the next slots, in order.
     * @param parents for each token the slot that it follows: the text's last one (−1 if there is
     *   none), or that of an earlier node, of this call or one before.
     * @param rows as for [forward].
     * @return as [forward].
     * @throws ContextOverflowException as [forward].
     * @throws IllegalArgumentException as [forward]; or a parent is none of those above.
     * @throws OmniDraftException this model scores no trees, or the engine failed.
     */
    fun forwardTree(tokens: IntArray, parents: IntArray, rows: Int = tokens.size): FloatBuffer

    /**
     * End the tree: of its nodes keep those of a path, moved together behind the text.
     *
     * @param path slots from the text downwards, each the parent of the next; none: the tree goes.
     * @throws IllegalArgumentException it is no such path; the tree is still held.
     */
    fun keep(path: IntArray)

    /**
     * Keep the first [length] tokens of the KV cache; a tree that is held goes.
     *
     * @throws IllegalArgumentException [length] is negative or greater than the current length.
     * @throws IllegalStateException [length] lies within a tree that is held.
     */
    fun truncate(length: Int)
}

/** A drafter that also tells what its head read, and drafts with a LoRA adapter or without one. */
interface AdaptiveModel : CausalModel {
    /** Width of the hidden states; 0 when this graph does not give them. */
    val hiddenSize: Int

    /** What [setAdapter] was given last; null: the base model. */
    val adapter: LoraWeights?

    /**
     * float32 `[hiddenSize]` of the last token of the last pass: a direct buffer's view, which the
     * next pass overwrites.
     *
     * @throws IllegalStateException the graph gives no hidden states.
     */
    fun lastHidden(): FloatBuffer

    /**
     * Use a LoRA adapter from now on; the KV cache, which the old weights filled, is emptied.
     *
     * @param adapter null: the base model, exactly. It may leave out linears, which then stay as
     *   they are.
     * @throws OmniDraftException the adapter does not fit the model; the one in use stays.
     */
    fun setAdapter(adapter: LoraWeights?)
}

/**
 * What every engine's passes demand of their arguments.
 *
 * @throws ContextOverflowException see [CausalModel.forward].
 * @throws IllegalArgumentException see [CausalModel.forward].
 */
internal fun CausalModel.checkPass(tokens: IntArray, rows: Int) {
    val count = tokens.size
    require(count > 0 && rows in 1..count) { "$count tokens of which $rows rows are asked for" }
    require(tokens.all { it in 0 until vocabSize }) { "token ids must lie in 0…${vocabSize - 1}" }
    if (length + count > maxLength) {
        throw ContextOverflowException(
            "$length + $count tokens exceed the context of $maxLength. " +
                "Shorten the prompt or generate fewer tokens."
        )
    }
}
