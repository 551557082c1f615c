package org.omnidraft.engine.core

import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.MethodSource
import org.omnidraft.engine.models.CausalModel

class GenerationTest {
    @ParameterizedTest
    @MethodSource("answers")
    fun `recorded answers come out as in every language`(recorded: RecordedAnswer) {
        val world = recorded.world()
        NgramCache(world.pair).use { cache ->
            val speculation = if (recorded.policyKind == "none") null else Speculation(
                cache, Speller(world.pair, world::segment), recorded.policy(),
                recorded.lookupTokens?.let { Lookup(world.target.size, it) }, recorded.begin,
                recorded.tree, recorded.scoresTrees, recorded.drafterLength,
            )
            val answer = answer(recorded, world, speculation)
            assertArrayEquals(recorded.ints("tokens"), answer.tokens.toIntArray())
            assertEquals(recorded.words("origins"), answer.origins.map { it.name.lowercase() })
            assertArrayEquals(recorded.ints("rows"), answer.rows.toIntArray())
            assertArrayEquals(recorded.ints("passes"), answer.passes.toIntArray())
            assertEquals(recorded.ints("inserted").single(), answer.inserted)
            assertEquals(
                recorded.words("cache").single(),
                cache.toBytes().joinToString("") { "%02x".format(it) },
            )
        }
    }

    @Test
    fun `the file is complete`() = assertEquals(72, RecordedAnswer.all().size)

    private class Answer {
        val tokens = ArrayList<Int>()
        val origins = ArrayList<Origin>()
        val rows = ArrayList<Int>()
        var passes: List<Int> = emptyList()
        var inserted = 0
    }

    private fun answer(recorded: RecordedAnswer, world: World, speculation: Speculation?): Answer {
        val answer = Answer()
        val target = ToyModel(world, true, recorded.targetLength)
        val drafter = ToyModel(world, false, maxOf(1, recorded.drafterLength), recorded.scoresTrees)
        Generation(
            world.target.size, recorded.sampling, recorded.verification, recorded.seed,
            recorded.ends, speculation,
        ).use { generation ->
            answer.inserted = generation.read(recorded.prompt)
            val body = recorded.prompt.copyOf(recorded.prompt.size - 1)
            if (body.isNotEmpty()) target.forward(body, 1)
            var ended = false
            while (!ended && answer.tokens.size < recorded.mostTokens && target.length < target.maxLength) {
                val room = recorded.mostTokens - answer.tokens.size - 1
                var more = generation.begin(room, target.length, target.maxLength)
                while (more) {
                    val pass = generation.pass()
                    assertEquals(
                        if (recorded.tree) pass.rows else 0, generation.passNodes().size
                    )
                    val logits = run(drafter, pass)
                    generation.drafted(logits, RecordedAnswer.drafterSeconds(pass.tokens.size))
                    more = generation.draftOn()
                }
                val pass = generation.score()
                answer.rows += pass.tokens.size
                val logits = run(target, pass)
                val verdict = generation.scored(logits)
                answer.tokens += verdict.tokens.toList()
                answer.origins += verdict.origins
                ended = verdict.ended
                assertEquals(verdict.tokens.size, generation.rows().size)
                val settled =
                    generation.settle(RecordedAnswer.targetSeconds(pass.tokens.size), 0.0)
                answer.inserted += settled.inserted
                keep(target, settled.target)
                keep(drafter, settled.drafter)
                check(speculation, generation, verdict)
            }
        }
        answer.passes = drafter.passes
        return answer
    }

    // What is shown of a round is of its verdict.
    private fun check(speculation: Speculation?, generation: Generation, verdict: Verdict) {
        val shown = generation.shown()
        assertEquals(speculation == null, shown.isEmpty())
        shown.firstOrNull()?.let { path ->
            assertEquals(path.tokens.size + 1, path.rows.size)
            assertEquals(path.tokens.size, path.counts.size)
            assertArrayEquals(
                verdict.tokens.copyOf(path.accepted), path.tokens.copyOf(path.accepted)
            )
            assertEquals(verdict.tokens[path.accepted], path.last)
        }
    }

    private fun run(model: CausalModel, pass: Pass) = pass.parents?.let {
        model.forwardTree(pass.tokens, it, pass.rows)
    } ?: run {
        model.truncate(pass.held)
        model.forward(pass.tokens, pass.rows)
    }

    private fun keep(model: CausalModel, kept: Kept) = when (kept) {
        Kept.All -> Unit
        is Kept.Length -> model.truncate(kept.length)
        is Kept.Path -> model.keep(kept.path)
    }

    companion object {
        init {
            CoreFixture.load()
        }

        @JvmStatic fun answers() = RecordedAnswer.all()
    }
}
