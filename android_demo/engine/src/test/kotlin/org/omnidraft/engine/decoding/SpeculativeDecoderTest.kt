package org.omnidraft.engine.decoding

import java.io.IOException
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertSame
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.omnidraft.engine.ContextOverflowException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.core.CoreFixture
import org.omnidraft.engine.core.FixedPolicy
import org.omnidraft.engine.core.Lookup
import org.omnidraft.engine.core.NgramCache
import org.omnidraft.engine.core.Policy
import org.omnidraft.engine.core.RecordedAnswer
import org.omnidraft.engine.core.Sampling
import org.omnidraft.engine.core.Speculation
import org.omnidraft.engine.core.Speller
import org.omnidraft.engine.core.ToyModel
import org.omnidraft.engine.core.Verification

/** Answers of made-up models are those of plain decoding, whatever happens to the drafter. */
class SpeculativeDecoderTest {
    /** Both models of a recorded answer, and what it drafts by. */
    private class Setting(val recorded: RecordedAnswer, private val policy: Policy = recorded.policy()) {
        val world = recorded.world()
        val target = ToyModel(world, true, recorded.targetLength)
        val drafter = ToyModel(world, false, maxOf(1, recorded.drafterLength), recorded.scoresTrees)
        val cache = NgramCache(world.pair)
        private val speller = Speller(world.pair, world::segment)
        private val lookup = recorded.lookupTokens?.let { Lookup(world.target.size, it) }

        fun drafting(scorer: ((Double) -> Double)? = null) = Drafting(
            drafter,
            Speculation(
                cache, speller, policy, lookup, recorded.begin, recorded.tree, recorded.scoresTrees,
                drafter.maxLength, drafter.held,
            ),
            scorer,
        )

        fun decoder(drafting: Drafting? = drafting()) = SpeculativeDecoder(
            target, drafting, recorded.sampling, recorded.seed, verification = recorded.verification,
        )

        fun answer(
            decoder: SpeculativeDecoder = decoder(), cancelled: () -> Boolean = { false },
            stops: (Int) -> Boolean = { false },
        ): List<Int> {
            val tokens = ArrayList<Int>()
            decoder.generate(recorded.prompt, recorded.mostTokens, recorded.ends.toSet(), cancelled, stops) {
                tokens += it.tokens.toList()
                assertEquals(it.tokens.size, it.origins.size)
            }
            return tokens
        }

        val plain by lazy { Setting(recorded).let { it.answer(it.decoder(drafting = null)) } }
    }

    private fun settings(kind: (RecordedAnswer) -> Boolean = { true }) = RecordedAnswer.all()
        .filter { it.policyKind != "none" && it.verification == Verification.FOLLOW && kind(it) }

    @Test
    fun `answers are those of plain decoding`() {
        for (recorded in settings()) {
            val setting = Setting(recorded)
            val expected = recorded.ints("tokens").toList()
            val decoder = setting.decoder()
            // The cache, the policy and both KV caches serve one answer after the other.
            repeat(2) { assertEquals(expected, setting.answer(decoder = setting.decoder()), "$recorded") }
            assertEquals(expected, setting.answer(decoder), "$recorded")
            assertEquals(expected, setting.plain, "$recorded")
            val reason = if (expected.last() in recorded.ends) FinishReason.STOP else FinishReason.LENGTH
            assertEquals(reason, decoder.finishReason)
            assertNull(decoder.drafterFailure)
        }
    }

    @Test
    fun `rejection sampling follows the recorded rounds`() {
        val sampled = RecordedAnswer.all()
            .filter { it.verification != Verification.FOLLOW && it.policyKind == "fixed" }
        assertTrue(sampled.size > 3)
        for (recorded in sampled) {
            assertEquals(recorded.ints("tokens").toList(), Setting(recorded).answer(), "$recorded")
        }
    }

    @Test
    fun `statistics are those of the passes`() {
        for (recorded in settings { it.policyKind == "fixed" }) {
            val setting = Setting(recorded)
            val decoder = setting.decoder()
            setting.answer(decoder)
            val made = decoder.statistics
            assertEquals(recorded.ints("tokens").size, made.tokens)
            assertEquals(recorded.ints("rows").size, made.rounds)
            // Where an answer ends within a round, what stood behind its end was not proposed.
            val scored = recorded.ints("rows").sum() - made.rounds
            assertTrue(made.proposed in made.accepted..scored, "$recorded")
            if (made.rounds > 1) assertTrue(scored - made.proposed < recorded.ints("rows").last())
            assertEquals(made.tokens - made.rounds, made.accepted)
            assertEquals(recorded.ints("inserted").single(), made.ngramsInserted)
            // The token that ends an answer is not counted as accepted.
            val merged = recorded.words("origins").count { it == "merged" }
            assertTrue(made.ngramsAccepted in merged - 1..merged)
            assertEquals(recorded.prompt.size, made.promptTokens)
            val passes = made.draftSeconds + made.targetSeconds + made.coreSeconds
            assertTrue(passes > 0 && passes <= made.seconds)
        }
    }

    @Test
    fun `where the drafter fails the answer goes on without it`() {
        val failures = listOf<(ToyModel) -> Unit>(
            { drafter -> drafter.before = { if (it.passes.size == 3) throw IOException("the device is gone") } },
            { drafter -> drafter.spoil = { if (drafter.passes.size == 3) it.put(0, Float.NaN) } },
        )
        for (recorded in settings { it.ints("passes").size > 4 && it.policyKind == "fixed" }) {
            for (fail in failures) {
                val setting = Setting(recorded)
                fail(setting.drafter)
                val decoder = setting.decoder()
                assertEquals(setting.plain, setting.answer(decoder), "$recorded")
                assertNotNull(decoder.drafterFailure)
                assertEquals(3, setting.drafter.passes.size)
                setting.drafter.before = {}
                assertEquals(setting.plain, setting.answer(), "$recorded, again")
                assertTrue(setting.drafter.passes.size > 3)
            }
        }
    }

    @Test
    fun `a cancelled answer leaves both models as they can be used`() {
        for (recorded in settings().filterIndexed { i, _ -> i % 4 < 2 }) {
            for (passes in 0..12) {
                val setting = Setting(recorded)
                var asked = 0
                val decoder = setting.decoder()
                val begun = setting.answer(decoder, cancelled = { asked++ == passes })
                if (asked <= passes) break // the answer ended before
                assertEquals(FinishReason.CANCELLED, decoder.finishReason)
                assertEquals(setting.plain.take(begun.size), begun)
                assertTrue(setting.target.passes.size + setting.drafter.passes.size <= passes)
                assertEquals(setting.target.length, setting.target.held.size, "no tree is held")
                assertEquals(setting.drafter.length, setting.drafter.held.size, "no tree is held")
                assertEquals(setting.plain, setting.answer(), "$recorded after $passes passes")
            }
        }
    }

    @Test
    fun `what the caller throws ends the answer`() {
        val setting = Setting(settings { it.ints("rows").size > 3 }.first())
        val thrown = IllegalStateException("nobody reads")
        assertSame(thrown, assertThrows(IllegalStateException::class.java) {
            setting.decoder().generate(setting.recorded.prompt, 20) { throw thrown }
        })
        assertEquals(setting.plain, setting.answer())
    }

    @Test
    fun `an answer ends with the token that its caller names`() {
        for (recorded in settings { it.ints("tokens").size > 5 }) {
            val setting = Setting(recorded)
            val last = setting.plain[setting.plain.size / 2]
            val decoder = setting.decoder()
            val answer = setting.answer(decoder, stops = { it == last })
            assertEquals(setting.plain.take(setting.plain.indexOf(last) + 1), answer, "$recorded")
            assertEquals(FinishReason.STOP, decoder.finishReason)
            assertEquals(recorded.prompt.size - 1 + answer.size, setting.target.length)
        }
    }

    @Test
    fun `what the target's KV cache holds of a prompt is not read again`() {
        val recorded = settings { it.prompt.size > 4 }.first()
        val setting = Setting(recorded)
        val answer = setting.answer()
        val decoder = setting.decoder()
        decoder.generate(recorded.prompt + answer.toIntArray(), 1) {}
        assertEquals(setting.target.held.size.coerceAtMost(recorded.prompt.size + answer.size - 1), decoder.statistics.promptKept)
        assertTrue(decoder.statistics.promptKept >= recorded.prompt.size)
    }

    @Test
    fun `the policy is told what a scorer says`() {
        val setting = Setting(
            settings { !it.tree && it.policyKind == "fixed" && it.ints("passes").size > 9 }.first(),
            FixedPolicy(4, confidence = 0.5),
        )
        val seen = ArrayList<Double>()
        val drafting = setting.drafting(scorer = { confidence -> 0.0.also { seen += confidence } })
        val decoder = setting.decoder(drafting)
        assertEquals(setting.plain, setting.answer(decoder))
        assertTrue(seen.isNotEmpty() && seen.all { it > 0 && it <= 1 })
        // Without confidence a round drafts one token, and no more.
        assertTrue(decoder.statistics.draftTokens <= decoder.statistics.rounds)
    }

    @Test
    fun `what cannot be answered is said`() {
        val setting = Setting(settings().first())
        val decoder = setting.decoder()
        assertThrows(OmniDraftException::class.java) { decoder.generate(IntArray(0), 5) {} }
        assertThrows(ContextOverflowException::class.java) {
            decoder.generate(IntArray(setting.target.maxLength + 1), 5) {}
        }
        setting.target.spoil = { it.put(0, Float.POSITIVE_INFINITY) }
        val error = assertThrows(OmniDraftException::class.java) { setting.answer(decoder) }
        assertTrue("damaged" in error.message!!)
        setting.target.spoil = {}
        assertEquals(setting.plain, setting.answer())
        assertThrows(OmniDraftException::class.java) { Sampling(temperature = -1.0) }
    }

    private companion object {
        init {
            CoreFixture.load()
        }
    }
}
