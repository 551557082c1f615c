package org.omnidraft.engine.core

/**
 * Seconds of passes by their tokens, measured on this device and followed by the policies that use
 * them.
 *
 * @param target by the contexts that a curve holds for, up to 256, 1024 or 4096 tokens (and all
 *   longer ones): seconds of passes over some numbers of tokens, 1 among them. At least one curve.
 * @param drafter the same for the drafter.
 * @throws CoreException a curve has no time of one token, or a time that is not positive.
 */
class Costs(target: Map<Int, Map<Int, Double>>, drafter: Map<Int, Double>) :
    Handle(emptyList(), Native::costsFree) {
    init {
        val curves = target.values + listOf(drafter)
        val points = curves.flatMap { it.entries }
        holds(
            Native.costsNew(
                target.keys.toIntArray(),
                curves.map { it.size }.toIntArray(),
                points.map { it.key }.toIntArray(),
                points.map { it.value }.toDoubleArray(),
            )
        )
    }

    /** The contexts that there are curves of the target for. */
    val bands: List<Int> get() = withAddress(Native::costsBands).toList()

    /** Whether any curve moved so far that it should be kept anew; new ones did. */
    val hasMoved: Boolean get() = withAddress(Native::costsMoved)

    /**
     * Seconds of a target's pass over so many tokens.
     *
     * @param band one of [bands].
     */
    fun targetSeconds(band: Int, tokens: Int): Double {
        require(band > 0 && tokens >= 0) { "a band of $band, and $tokens tokens" }
        return withAddress { Native.costsSeconds(it, band, tokens) }
    }

    /** Seconds of a drafter's pass over so many tokens. */
    fun drafterSeconds(tokens: Int): Double {
        require(tokens >= 0) { "$tokens tokens" }
        return withAddress { Native.costsSeconds(it, 0, tokens) }
    }

    /** The curves have been kept. */
    fun written() = withAddress(Native::costsWritten)
}

/** How much each round drafts. */
sealed class Policy(restsOn: List<Handle>) : Handle(restsOn, Native::policyFree)

/**
 * So many tokens every round; of a tree the most probable ones.
 *
 * @param confidence drafting ends early where the drafter's confidence in all of a path falls below
 *   this, of 0 to 1; 0: never.
 */
class FixedPolicy(tokens: Int, confidence: Double = 0.0) : Policy(emptyList()) {
    init {
        require(tokens >= 0) { "$tokens tokens cannot be drafted" }
        holds(Native.policyFixed(tokens, confidence))
    }
}

/**
 * What makes most tokens per second, by what passes cost and how often tokens are accepted. It
 * learns: keep it from answer to answer, one for each kind of answers (chains or trees, with a seed
 * or without, temperature).
 */
class CostAwarePolicy(costs: Costs) : Policy(listOf(costs)) {
    init {
        holds(costs.withAddress(Native::policyCostAware))
    }
}

/**
 * Finds what followed in the text before; it costs no drafter. It is emptied when a prompt is read,
 * and serves one generation at a time.
 *
 * @param vocabularySize the target's.
 * @param maxTokens of the text that is kept, at most; 2 or more.
 */
class Lookup(vocabularySize: Int, maxTokens: Int = 1 shl 16) :
    Handle(emptyList(), Native::lookupFree) {
    init {
        holds(Native.lookupNew(vocabularySize, maxTokens))
    }
}
