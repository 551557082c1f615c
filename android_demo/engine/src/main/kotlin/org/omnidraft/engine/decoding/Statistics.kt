package org.omnidraft.engine.decoding

/**
 * What a generation did and where its time went; seconds are wall-clock.
 *
 * @property tokens emitted, an end-of-text token included.
 * @property rounds passes of the target after the prompt.
 * @property draftTokens that were drawn; of trees those that spell what was proposed.
 * @property proposed target tokens that were scored.
 * @property accepted of these, those that stood.
 * @property ngramHits proposed tokens that came from the n-gram cache.
 * @property promptKept prompt tokens that the target's KV cache held from before.
 * @property coreSeconds in the native core: drafting and verification.
 * @property seconds from the end of the prompt to the last token.
 */
data class Statistics(
    var promptTokens: Int = 0,
    var promptKept: Int = 0,
    var promptSeconds: Double = 0.0,
    var tokens: Int = 0,
    var rounds: Int = 0,
    var draftTokens: Int = 0,
    var proposed: Int = 0,
    var accepted: Int = 0,
    var ngramHits: Int = 0,
    var ngramsAccepted: Int = 0,
    var ngramsInserted: Int = 0,
    var draftSeconds: Double = 0.0,
    var targetSeconds: Double = 0.0,
    var coreSeconds: Double = 0.0,
    var seconds: Double = 0.0,
) {
    /** Target tokens per second after the prompt. */
    val tokensPerSecond: Double get() = if (seconds > 0) tokens / seconds else 0.0

    /** Milliseconds of a round outside the models and the core. */
    val overheadMilliseconds: Double
        get() = if (rounds > 0) 1000 * (seconds - draftSeconds - targetSeconds - coreSeconds) / rounds else 0.0
}
