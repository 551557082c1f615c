package org.omnidraft.engine.core

import java.nio.ByteOrder
import java.nio.FloatBuffer

/**
 * How the target's distribution is shaped. Applied in this order, as Hugging Face transformers
 * does: repetition penalty, temperature, top-k, top-p, min-p.
 *
 * @param temperature 0: greedy decoding.
 * @param topK 0: off.
 * @param topP 1: off.
 * @param minP 0: off.
 * @param repetitionPenalty 1: off.
 * @throws CoreException one is outside its range, which the message names.
 */
data class Sampling(
    val temperature: Double = 0.0,
    val topK: Int = 0,
    val topP: Double = 1.0,
    val minP: Double = 0.0,
    val repetitionPenalty: Double = 1.0,
) {
    init {
        Native.samplingCheck(temperature, topK, topP, minP, repetitionPenalty)
    }

    /** Whether the likeliest token is taken. */
    val greedy: Boolean get() = temperature == 0.0
}

/** Which drafted tokens stand. */
enum class Verification {
    /**
     * Those that plain decoding takes: for greedy decoding, and for sampling by a seed. Trees are
     * always verified so.
     */
    FOLLOW,

    /** Of chains, by rejection sampling: distributed exactly as the target. */
    EXACT,

    /** The rejection sampling of OmniDraft's paper, approximate. */
    PAPER,
}

/**
 * What speculation needs beside the models; cache and speller are of one pair.
 *
 * @param lookup null: nothing is looked up.
 * @param begin draft tokens that open every context (beginning of text).
 * @param tree draft trees, which the target must score; else chains.
 * @param scoresTrees whether the drafter scores them, too.
 * @param maxLength of the drafter's KV cache, in tokens.
 * @param held what the drafter's KV cache holds; none where that may not be used.
 */
class Speculation(
    val cache: NgramCache,
    val speller: Speller,
    val policy: Policy,
    val lookup: Lookup? = null,
    val begin: IntArray = IntArray(0),
    val tree: Boolean = false,
    val scoresTrees: Boolean = false,
    val maxLength: Int,
    val held: IntArray = IntArray(0),
)

/**
 * An answer of a target, round by round: which passes of the two models to run, and what came of
 * them. Whoever holds the models runs the passes.
 *
 * ```
 * generation.read(prompt)                         // the target has read all but its last token
 * while (...) {
 *     var more = generation.begin(room, target.length, target.maxLength)
 *     while (more) {
 *         val pass = generation.pass()            // of the drafter: cut its KV cache, and run it
 *         generation.drafted(logits, seconds)
 *         more = generation.draftOn()
 *     }
 *     val pass = generation.score()               // of the target: run it
 *     val verdict = generation.scored(logits)
 *     val settled = generation.settle(targetSeconds, otherSeconds)
 *     ...                                         // keep of both KV caches what it says
 * }
 * ```
 *
 * The tokens are the target's own, whatever is drafted; see [Verification]. Logits are float32, in
 * direct buffers of the device's own byte order, from their position to their limit, rows after one
 * another; they are read where they lie. Calls out of order are a [CoreException] and change
 * nothing. Where a call that is in order fails for another reason than its arguments, the answer
 * cannot go on.
 *
 * @param vocabularySize columns of the target's logits.
 * @param seed of what is sampled: 64 bits.
 * @param ends end-of-text tokens: an answer ends with the first of them.
 * @param speculation null: plain decoding.
 * @throws CoreException what is given does not belong together.
 */
class Generation(
    vocabularySize: Int,
    sampling: Sampling = Sampling(),
    verification: Verification = Verification.FOLLOW,
    seed: Long = 0,
    ends: IntArray = IntArray(0),
    speculation: Speculation? = null,
) : Handle(speculation?.parts().orEmpty(), Native::generationFree) {
    init {
        val made = withAddresses(speculation?.parts().orEmpty()) { parts ->
            Native.generationNew(
                vocabularySize, sampling.temperature, sampling.topK, sampling.topP, sampling.minP,
                sampling.repetitionPenalty, verification.ordinal, seed, ends,
                parts.getOrElse(0) { 0 }, parts.getOrElse(1) { 0 }, parts.getOrElse(2) { 0 },
                parts.getOrElse(3) { 0 }, speculation?.begin ?: IntArray(0),
                speculation?.tree ?: false, speculation?.scoresTrees ?: false,
                speculation?.maxLength ?: 0, speculation?.held ?: IntArray(0),
            )
        }
        holds(made)
    }

    /**
     * The prompt, once, before the first round: at least one token.
     *
     * @return n-grams that were inserted into the cache.
     */
    fun read(prompt: IntArray): Int = withAddress { Native.generationRead(it, prompt) }

    /**
     * Begin a round.
     *
     * @param room tokens that are still wanted, less the one that every round adds.
     * @param length of the target's KV cache; [maxLength]: the most it holds.
     * @return whether the drafter is to run [pass].
     */
    fun begin(room: Int, length: Int, maxLength: Int): Boolean {
        require(room >= 0 && length >= 0 && maxLength >= 0) { "a round has room for tokens" }
        return withAddress { Native.generationBegin(it, room, length, maxLength) }
    }

    /** The drafter's pass. */
    fun pass(): Pass = withAddress { Ints(Native.generationPass(it)).pass() }

    /** Of a tree, the numbers of the draft nodes whose rows [pass] gives, in order. */
    fun passNodes(): IntArray = withAddress(Native::generationPassNodes)

    /**
     * The drafter's pass gave [logits] in so many seconds.
     *
     * @throws CoreException they are not numbers: call [fail].
     */
    fun drafted(logits: FloatBuffer, seconds: Double) {
        checkBuffer(logits)
        withAddress {
            Native.generationDrafted(it, logits, logits.position(), logits.remaining(), seconds)
        }
    }

    /** Of a chain, the largest probability among the tokens that could be drawn at the last step. */
    val confidence: Double get() = withAddress(Native::generationConfidence)

    /** Whether a chain's last step drew a token. */
    val drew: Boolean get() = withAddress(Native::generationDrew)

    /** Of a chain, how likely the token drawn last is to be accepted, in place of [confidence]. */
    fun scoreAs(score: Double) = withAddress { Native.generationScoreAs(it, score) }

    /** Whether the drafter is to run again: the next [pass]. */
    fun draftOn(): Boolean = withAddress(Native::generationDraftOn)

    /**
     * At any time: the drafter cannot go on. What was drafted so far is proposed, and no further
     * round drafts.
     */
    fun fail() = withAddress(Native::generationFail)

    /** Whether rounds may draft. */
    val drafts: Boolean get() = withAddress(Native::generationDrafts)

    /** The target's pass. */
    fun score(): Pass = withAddress { Ints(Native.generationScore(it)).pass() }

    /**
     * What the target's pass says. Where it throws for [logits] it may be called again.
     *
     * @throws CoreException they are not numbers, or not as many as wanted.
     */
    fun scored(logits: FloatBuffer): Verdict {
        checkBuffer(logits)
        return withAddress {
            val verdict =
                Native.generationScored(it, logits, logits.position(), logits.remaining())
            Ints(verdict).verdict()
        }
    }

    /**
     * The answer ends with token [end] of the verdict, a stop text say: cut what stands behind it.
     *
     * @return the verdict as it is then.
     */
    fun endAt(end: Int): Verdict = withAddress { Ints(Native.generationEndAt(it, end)).verdict() }

    /** Of each token of the verdict, the row of logits that it was taken from. */
    fun rows(): IntArray = withAddress(Native::generationRows)

    /** What was proposed in this round. */
    fun proposed(): Proposed = withAddress {
        val all = Native.generationProposed(it)
        Proposed(all.copyOfRange(0, all.size / 2), all.copyOfRange(all.size / 2, all.size))
    }

    /**
     * End the round and learn from it.
     *
     * @param targetSeconds of the target's pass; [otherSeconds]: of [scored].
     */
    fun settle(targetSeconds: Double, otherSeconds: Double): Settled =
        withAddress { Ints(Native.generationSettle(it, targetSeconds, otherSeconds)).settled() }

    /** What the round that was settled last has to show; none where nothing drafts. */
    fun shown(): List<Shown> = withAddress { generation ->
        List(Native.generationShow(generation)) {
            Ints(Native.generationShown(generation, it)).shown()
        }
    }

    /** The draft tokens that stand for the text. A copy. */
    val context: IntArray get() = withAddress(Native::generationContext)

    private companion object {
        fun Speculation.parts(): List<Handle> = listOfNotNull(cache, speller, policy, lookup)

        fun checkBuffer(logits: FloatBuffer) = require(
            logits.isDirect && logits.order() == ByteOrder.nativeOrder()
        ) { "logits lie in a direct buffer of the device's own byte order" }
    }
}
