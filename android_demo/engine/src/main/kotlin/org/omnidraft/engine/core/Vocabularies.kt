package org.omnidraft.engine.core

/**
 * The tokens of a model, by the bytes that each spells.
 *
 * @param surfaces bytes of each token, one for each column of the model's logits; null for special
 *   tokens, which have none: control tokens, chat markers, columns without a token.
 * @param pieces the tokenizer's own strings, which only [MappingRule.PAPER] compares; or none.
 * @param byteTokens byte-fallback tokens: another token may spell the same byte.
 * @throws CoreException there are no tokens.
 * @throws IllegalArgumentException pieces are not as many as surfaces, or a byte token is no token.
 */
class Vocabulary(
    surfaces: List<ByteArray?>,
    pieces: List<String> = emptyList(),
    byteTokens: Iterable<Int> = emptyList(),
) : Handle(emptyList(), Native::vocabularyFree) {
    /** Number of tokens. */
    val size = surfaces.size

    init {
        require(pieces.isEmpty() || pieces.size == size) {
            "${pieces.size} pieces of $size tokens: pieces are as many as surfaces, or none"
        }
        val kinds = ByteArray(size) { if (surfaces[it] == null) SPECIAL else NORMAL }
        for (token in byteTokens) {
            require(token in 0 until size) { "byte token $token is outside the vocabulary" }
            if (kinds[token] == NORMAL) kinds[token] = BYTE
        }
        val (surfaceBytes, surfaceEnds) = joined(surfaces.map { it ?: ByteArray(0) })
        val (pieceBytes, pieceEnds) = joined(pieces.map { it.encodeToByteArray() })
        holds(Native.vocabularyNew(surfaceBytes, surfaceEnds, pieceBytes, pieceEnds, kinds))
    }

    private companion object {
        const val NORMAL: Byte = 0
        const val SPECIAL: Byte = 1
        const val BYTE: Byte = 2

        fun joined(texts: List<ByteArray>): Pair<ByteArray, IntArray> {
            val ends = IntArray(texts.size)
            val size = texts.sumOf { it.size.toLong() }
            require(size <= Int.MAX_VALUE) { "the texts of a vocabulary hold $size bytes" }
            val all = ByteArray(size.toInt())
            var end = 0
            texts.forEachIndexed { i, text ->
                text.copyInto(all, end)
                end += text.size
                ends[i] = end
            }
            return all to ends
        }
    }
}

/** Which tokens of two vocabularies stand for each other. */
enum class MappingRule {
    /** Those with equal surfaces. */
    BYTES,

    /** Those with equal pieces, as in OmniDraft's paper. */
    PAPER,
}

/** A drafter's and a target's vocabulary, and which tokens stand for each other directly. */
class VocabularyPair(
    drafter: Vocabulary,
    target: Vocabulary,
    rule: MappingRule = MappingRule.BYTES,
) : Handle(emptyList(), Native::pairFree) {
    /** Number of the drafter's tokens. */
    val drafterSize = drafter.size

    /** Number of the target's tokens. */
    val targetSize = target.size

    /** Equal for equal vocabularies and rules: 64 bits, to name the file of a cache by. */
    val fingerprint: Long

    /** Number of draft tokens that a target token stands for directly. */
    val directCount: Int

    init {
        val made = withAddresses(listOf(drafter, target)) { (ofDrafter, ofTarget) ->
            Native.pairNew(ofDrafter, ofTarget, rule.ordinal)
        }
        holds(made)
        fingerprint = Native.pairFingerprint(made)
        directCount = Native.pairDirectCount(made).toInt()
    }

    /**
     * The target token of a draft token; null where there is none.
     *
     * @throws CoreException [draft] is outside the drafter's vocabulary.
     */
    fun toTarget(draft: Int): Int? = withAddress { Native.pairToTarget(it, draft) }.takeIf { it >= 0 }

    /**
     * The draft token of a target token; null where there is none.
     *
     * @throws CoreException [target] is outside the target's vocabulary.
     */
    fun toDraft(target: Int): Int? = withAddress { Native.pairToDraft(it, target) }.takeIf { it >= 0 }
}
