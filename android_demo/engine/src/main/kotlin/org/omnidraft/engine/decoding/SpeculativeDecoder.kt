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
import org.omnidraft.engine.core.Verification
import org.omnidraft.engine.models.CausalModel

/** Prompt tokens per target pass: bounds the memory of attention scores, and the wait of a cancelled prompt. */
private const val PROMPT_CHUNK = 256

/** Why an answer ended. */
enum class FinishReason { STOP, LENGTH, CANCELLED }

/** A drafter and what it drafts by; see [Speculation]. */
class Drafting(val model: CausalModel, val speculation: Speculation)

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
 * whatever is drafted: the likeliest, or those that belong to the seed.
 *
 * @param keep begin with what the target's KV cache holds of the prompt. A batch-invariant target
 *   gives the same answer, bit for bit.
 * @param observer shown every round with a drafter once it is settled.
 */
class SpeculativeDecoder(
    private val target: CausalModel,
    private val drafting: Drafting? = null,
    private val sampling: Sampling = Sampling(),
    private val seed: Long = 0,
    private val keep: Boolean = true,
    private val observer: ((Generation) -> Unit)? = null,
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
     * An exception of [emit] ends the answer, and both models can be used again.
     *
     * @param prompt at least one target token.
     * @param ends end-of-text tokens.
     * @param cancelled asked before every pass; true ends the answer.
     * @throws ContextOverflowException the prompt does not fit the target's context.
     * @throws OmniDraftException the prompt is empty, or the target's logits are not numbers.
     */
    fun generate(
        prompt: IntArray,
        maxNewTokens: Int,
        ends: Set<Int> = emptySet(),
        cancelled: () -> Boolean = { false },
        emit: (Round) -> Unit,
    ) {
        if (prompt.isEmpty()) throw OmniDraftException("The prompt holds no tokens. Give it some text.")
        checkPrompt(prompt.size)
        statistics = Statistics(promptTokens = prompt.size)
        finishReason = FinishReason.LENGTH
        drafterFailure = null
        drafting?.model?.truncate(drafting.speculation.held.size)
        val generation = Generation(
            target.vocabSize, sampling, Verification.FOLLOW, seed, ends.toIntArray(), drafting?.speculation,
        )
        try {
            if (read(generation, prompt, cancelled)) rounds(generation, maxNewTokens, cancelled, emit)
        } finally {
            generation.close()
        }
    }

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

    private fun rounds(
        generation: Generation, maxNewTokens: Int, cancelled: () -> Boolean, emit: (Round) -> Unit,
    ) {
        val began = now()
        while (statistics.tokens < maxNewTokens) {
            val room = min(maxNewTokens - statistics.tokens, target.maxLength - target.length) - 1
            if (room < 0 || isCancelled(cancelled)) return
            val ended = round(generation, room, emit = { round ->
                statistics.seconds = now() - began
                emit(round)
            }, cancelled)
            if (ended) finishReason = FinishReason.STOP
            if (ended || finishReason == FinishReason.CANCELLED) return
        }
    }

    /** One round; whether the answer ends with it. */
    private fun round(
        generation: Generation, room: Int, emit: (Round) -> Unit, cancelled: () -> Boolean,
    ): Boolean {
        var more = generation.begin(room, target.length, target.maxLength)
        while (more) {
            more = try {
                draft(generation)
            } catch (error: Exception) {
                drafterFailure = error.message ?: error.javaClass.simpleName
                generation.fail()
                false
            }
        }
        val scoring = generation.score()
        if (isCancelled(cancelled)) return false
        val before = now()
        val logits = target.run(scoring)
        val after = now()
        val verdict = try {
            generation.scored(logits)
        } catch (error: CoreException) {
            throw OmniDraftException("${error.message}. The target's files may be damaged.", error)
        }
        val verified = now()
        val settled = generation.settle(after - before, verified - after)
        target.leave(settled.target)
        if (drafterFailure == null) drafting?.model?.leave(settled.drafter)
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
        if (drafting != null) observer?.invoke(generation)
        emit(Round(verdict.tokens, verdict.origins))
        return verdict.ended
    }

    /** A pass of the drafter; whether it is to run again. */
    private fun draft(generation: Generation): Boolean {
        val model = drafting!!.model
        val before = now()
        val logits = model.run(generation.pass())
        val after = now()
        generation.drafted(logits, after - before)
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

private fun CausalModel.leave(kept: Kept) = when (kept) {
    is Kept.All -> Unit
    is Kept.Length -> truncate(kept.length)
    is Kept.Path -> keep(kept.path)
}

private fun now() = System.nanoTime() / 1e9
