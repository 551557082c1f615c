package org.omnidraft.engine.core

/** The drafter's tokenizer, as a speller needs it. */
fun interface Segment {
    /**
     * Draft tokens whose surfaces join to [bytes], as the tokenizer splits them in isolation; null
     * or none where there are none. What it throws comes out of the call that needed it.
     */
    fun segment(bytes: ByteArray): IntArray?
}

/**
 * Translates target tokens into draft tokens, by their bytes. It serves all generations of a pair.
 *
 * @param segment is asked while the speller is made, and while generations read and settle. It uses
 *   no handle of theirs.
 * @param specialText what the drafter reads in place of a special token.
 * @param specials special tokens of the target for which the drafter has its own.
 * @throws CoreException a token is outside its vocabulary.
 */
class Speller(
    internal val pair: VocabularyPair,
    segment: Segment,
    specialText: String = "\n",
    specials: Map<Int, Int> = emptyMap(),
) : Handle(emptyList(), Native::spellerFree) {
    init {
        val made = pair.withAddress {
            Native.spellerNew(
                it, segment, specialText.encodeToByteArray(), specials.keys.toIntArray(),
                specials.values.toIntArray(),
            )
        }
        holds(made)
    }
}
