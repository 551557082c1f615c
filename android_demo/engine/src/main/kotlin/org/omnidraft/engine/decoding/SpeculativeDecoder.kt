package org.omnidraft.engine.decoding

import java.nio.FloatBuffer
import kotlin.math.min
import org.omnidraft.engine.ContextOverflowException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.core.CoreException
import org.omnidraft.engine.core.Generation
import org.omnidraft.engine.core.Kept
import org.omnidraft.engine.core.Origin
import org.omnidraft.engine.core.Pass
import org.omnidraft.engine.core.Sampling
import org.omnidraft.engine.core.Speculation
import org.omnidraft.engine.core.Verdict
import org.omnidraft.engine.core.Verification
import org.omnidraft.engine.models.CausalModel

/** Prompt tokens per target pass: bounds the memory of attention scores, and the wait of a cancelled prompt. */
private const val PROMPT_CHUNK = 256

/** Why an answer ended. */
enum class FinishReason { STOP, LENGTH, CANCELLED }

/**
 * A drafter and what it drafts by.
 *
 * @param speculation of this model: its length, and what its KV cache holds now or nothing.
 * @param scorer of chains, from the drafter's largest probability, how likely the token drawn last is
 *   to be accepted, as the policy is told; null: as likely as that probability.
 */
class Drafting(
    val model: CausalModel,
    val speculation: Speculation,
    val scorer: ((Double) -> Double)? = null,
)

/** Tokens of one round. */
class Round(val tokens: IntArray, val origins: List<Origin>)

/**
 * Generates tokens of a target, with a drafter or plainly.
 *
 *     val decoder = SpeculativeDecoder(target, drafting)
 *     decoder.generate(prompt, 200, ends, cancelled = { stop }) { round -> show(round.tokens) }
 *     decoder.finishReason
 *
 * One pass of the target scores the last token and everything proposed after it. What a round drafts
 * and which tokens stand is decided by the native core. The tokens are those of plain decoding,
 * whatever is drafted: the likeliest, or those that belong to the seed. Where the drafter fails, the
 * answer goes on without it.
 *
 * @param keep begin with what the target's KV cache holds of the prompt. A batch-invariant target
 *   gives the same answer, bit for bit.
 * @param observer shown every round with a drafter once it is settled.
 * @param verification of chains that are sampled: EXACT or PAPER in place of the tokens that belong to
 *   the seed.
 */
class SpeculativeDecoder(
    private val target: CausalModel,
    private val drafting: Drafting? = null,
    private val sampling: Sampling = Sampling(),
    private val seed: Long = 0,
    private val keep: Boolean = true,
    private val observer: ((Generation) -> Unit)? = null,
    private val verification: Verification = Verification.FOLLOW,
) {
    /** Of the last generation. */
    var statistics = Statistics()
        private set

    /** Why it ended. */
    var finishReason = FinishReason.LENGTH
        private set

    /** Why the drafter could not go on; null where it could. */
    var drafterFailure: String? = null
        private set

    /**
     * Make an answer, an end-of-text token included; [emit] is given each round's tokens.
     *
     * An exception of [emit] ends the answer. However it ends, both models can be used again.
     *
     * @param prompt at least one target token.
     * @param ends end-of-text tokens.
     * @param cancelled asked before every pass; true ends the answer.
     * @param stops asked of each token that is no end-of-text token, in order and before it is
     *   emitted, whether the answer ends with it.
     * @throws ContextOverflowException the prompt does not fit the target's context.
     * @throws OmniDraftException the prompt is empty, or the target's logits are not numbers.
     */
    fun generate(
        prompt: IntArray,
        maxNewTokens: Int,
        ends: Set<Int> = emptySet(),
        cancelled: () -> Boolean = { false },
        stops: (Int) -> Boolean = { false },
        emit: (Round) -> Unit,
    ) {
        if (prompt.isEmpty()) throw OmniDraftException("The prompt holds no tokens. Give it some text.")
        checkPrompt(prompt.size)
        statistics = Statistics(promptTokens = prompt.size)
        finishReason = FinishReason.LENGTH
        drafterFailure = null
        drafting?.model?.truncate(drafting.speculation.held.size)
        val generation = Generation(
            target.vocabSize, sampling,
            if (sampling.greedy) Verification.FOLLOW else verification,
            seed, ends.toIntArray(), drafting?.speculation,
        )
        try {
            if (read(generation, prompt, cancelled)) {
                rounds(generation, maxNewTokens, Asked(cancelled, stops, emit))
            }
        } finally {
            generation.close()
            // A round that did not end may have left its tree.
            target.dropTree()
            if (drafterFailure == null) drafting?.model?.dropTree()
        }
    }

    /** What the caller is asked and given. */
    private class Asked(
        val cancelled: () -> Boolean, val stops: (Int) -> Boolean, val emit: (Round) -> Unit,
    )

    private fun checkPrompt(size: Int) {
        val excess = size - target.maxLength + 1
        if (excess > 0) {
            throw ContextOverflowException(
                "The prompt has $size tokens, but the model's context holds ${target.maxLength}. " +
                    "Shorten the prompt by $excess or more."
            )
        }
    }

    /** Read all but the prompt's last token, which the first round reads; false: cancelled. */
    private fun read(generation: Generation, prompt: IntArray, cancelled: () -> Boolean): Boolean {
        val began = now()
        statistics.ngramsInserted += generation.read(prompt)
        val held = if (keep) target.held else IntArray(0)
        var done = 0
        while (done < min(held.size, prompt.size - 1) && held[done] == prompt[done]) done++
        target.truncate(done)
        statistics.promptKept = done
        while (done < prompt.size - 1) {
            if (isCancelled(cancelled)) return false
            val end = min(done + PROMPT_CHUNK, prompt.size - 1)
            target.forward(prompt.copyOfRange(done, end), rows = 1)
            done = end
        }
        statistics.promptSeconds = now() - began
        return true
    }

    private fun isCancelled(cancelled: () -> Boolean): Boolean =
        cancelled().also { if (it) finishReason = FinishReason.CANCELLED }

    private fun rounds(generation: Generation, maxNewTokens: Int, asked: Asked) {
        val began = now()
        while (statistics.tokens < maxNewTokens) {
            val room = min(maxNewTokens - statistics.tokens, target.maxLength - target.length) - 1
            if (room < 0 || isCancelled(asked.cancelled)) return
            val verdict = round(generation, room, asked) ?: return
            statistics.seconds = now() - began
            if (drafting != null) observer?.invoke(generation)
            asked.emit(Round(verdict.tokens, verdict.origins))
            if (finishReason == FinishReason.STOP) return
        }
    }

    /** What one round made; null: it was cancelled. */
    private fun round(generation: Generation, room: Int, asked: Asked): Verdict? {
        var more = generation.begin(room, target.length, target.maxLength)
        while (more) {
            if (isCancelled(asked.cancelled)) return null
            more = trying(generation, otherwise = false) { draft(generation) }
        }
        val scoring = generation.score()
        if (isCancelled(asked.cancelled)) return null
        val before = now()
        val logits = target.run(scoring)
        val after = now()
        val verified: Double
        var verdict = try {
            generation.scored(logits)
        } catch (error: CoreException) {
            throw OmniDraftException("${error.message}. The target's files may be damaged.", error)
        } finally {
            verified = now()
        }
        val open = verdict.tokens.size - if (verdict.ended) 1 else 0
        val end = (0 until open).firstOrNull { asked.stops(verdict.tokens[it]) }
        if (end != null) verdict = generation.endAt(end)
        if (verdict.ended || end != null) finishReason = FinishReason.STOP
        val settled = generation.settle(after - before, verified - after)
        target.leave(settled.target)
        if (drafterFailure == null && drafting != null) {
            trying(generation, Unit) { drafting.model.leave(settled.drafter) }
        }
        with(statistics) {
            rounds += 1
            tokens += verdict.tokens.size
            proposed += verdict.proposed
            accepted += verdict.accepted
            ngramHits += verdict.merged
            ngramsAccepted += verdict.mergedAccepted
            draftTokens += settled.draftTokens
            ngramsInserted += settled.inserted
            targetSeconds += after - before
            coreSeconds += verified - after
        }
        return verdict
    }

    /** Do something with the drafter, which may fail: engines' errors share no narrower class. */
    private fun <T> trying(generation: Generation, otherwise: T, work: () -> T): T = try {
        work()
    } catch (error: Exception) {
        drafterFailure = error.message ?: error.javaClass.simpleName
        generation.fail()
        otherwise
    }

    /** A pass of the drafter; whether it is to run again. */
    private fun draft(generation: Generation): Boolean {
        val model = drafting!!.model
        val before = now()
        val logits = model.run(generation.pass())
        val after = now()
        generation.drafted(logits, after - before)
        drafting.scorer?.let { if (generation.drew) generation.scoreAs(it(generation.confidence)) }
        statistics.draftSeconds += after - before
        statistics.coreSeconds += now() - after
        return generation.draftOn()
    }
}

private fun CausalModel.run(pass: Pass): FloatBuffer {
    val parents = pass.parents
    if (parents != null) return forwardTree(pass.tokens, parents)
    if (length != pass.held) truncate(pass.held)
    return forward(pass.tokens, pass.rows)
}

private fun CausalModel.dropTree() = truncate(held.size)

private fun CausalModel.leave(kept: Kept) = when (kept) {
    is Kept.All -> Unit
    is Kept.Length -> truncate(kept.length)
    is Kept.Path -> keep(kept.path)
}

private fun now() = System.nanoTime() / 1e9
