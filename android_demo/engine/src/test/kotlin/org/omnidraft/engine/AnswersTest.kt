package org.omnidraft.engine

import ai.onnxruntime.OrtEnvironment
import java.nio.file.Files
import java.nio.file.Path
import java.security.MessageDigest
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerialName
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.junit.jupiter.api.io.TempDir
import org.omnidraft.engine.core.CoreFixture
import org.omnidraft.engine.core.FixedPolicy
import org.omnidraft.engine.core.Sampling
import org.omnidraft.engine.decoding.Drafting
import org.omnidraft.engine.decoding.SpeculativeDecoder
import org.omnidraft.engine.files.Progress
import org.omnidraft.engine.files.toHex
import org.omnidraft.engine.models.CacheMemory
import org.omnidraft.engine.models.OnnxModel
import org.omnidraft.engine.models.cpuFeatures
import org.omnidraft.engine.text.Message

/** Answers with real models are Python's, and on the processor that recorded them so is all that it took. */
class AnswersTest {
    @Serializable
    private class Answer(
        val prompt: IntArray, val tokens: IntArray, val rounds: Int, val proposed: Int,
        val accepted: Int, @SerialName("ngram_hits") val ngramHits: Int,
    )

    @Serializable
    private class Way(
        @SerialName("draft_length") val draftLength: Int? = null,
        @SerialName("draft_confidence") val draftConfidence: Double = 0.0,
        val tree: Int? = null,
        val temperature: Double = 0.0,
        val seed: Long = 0,
        val answers: List<Answer>,
        @SerialName("cache_sha256") val cacheSha256: String,
    ) {
        override fun toString() =
            (if (tree != null) "trees of $tree" else "chains of $draftLength") + ", temperature $temperature"
    }

    @Serializable
    private class Recorded(
        val onnxruntime: String, val processor: List<String>, val threads: Int,
        @SerialName("least_pass") val leastPass: Int, val prompts: List<String>,
        @SerialName("max_new_tokens") val maxNewTokens: Int, val ways: List<Way>,
    )

    @TestFactory
    fun `answers are Python's`(): List<DynamicTest> {
        val recorded = recorded()
        val here = OrtEnvironment.getEnvironment().version
        assumeTrue(recorded.onnxruntime == here, "ONNX Runtime ${recorded.onnxruntime} made them, here is $here")
        // Another processor's kernels give the drafter's probabilities other last bits, by which it may
        // propose another token or one more; the target's tokens stand.
        val compared = if (recorded.processor == cpuFeatures()) ALL else listOf(TOKENS)
        val what = if (compared == ALL) "rounds and n-grams too" else "tokens alone: another processor recorded them"
        return recorded.ways.map { way ->
            DynamicTest.dynamicTest("$way, $what") { replay(recorded, way, compared) }
        }
    }

    private fun replay(recorded: Recorded, way: Way, compared: List<String>) {
        val target = load("target", recorded.threads)
        (target.model as OnnxModel).leastPass = recorded.leastPass
        val drafter = load("drafter", recorded.threads)
        val pairing = Pairing(target, drafter, null, ByteArray(0), null) { error("nothing is measured") }
        val policy = FixedPolicy(way.tree ?: way.draftLength!!, way.draftConfidence)
        val overheads = ArrayList<Double>()
        val same = sortedMapOf<String, Int>()
        for ((text, expected) in recorded.prompts.zip(way.answers)) {
            val prompt = target.tokenizer.encodeChat(listOf(Message("user", text)))
            assertArrayEquals(expected.prompt, prompt)
            val drafting = Drafting(drafter.model, pairing.speculation(policy, way.tree != null))
            val decoder = SpeculativeDecoder(target.model, drafting, Sampling(way.temperature), way.seed)
            val tokens = ArrayList<Int>()
            decoder.generate(prompt, recorded.maxNewTokens, target.tokenizer.eosIds) { tokens += it.tokens.asList() }
            val made = decoder.statistics
            for ((what, equal) in listOf(
                TOKENS to (expected.tokens.asList() == tokens),
                ROUNDS to (expected.rounds == made.rounds),
                PROPOSED to (expected.proposed == made.proposed),
                ACCEPTED to (expected.accepted == made.accepted),
                NGRAM_HITS to (expected.ngramHits == made.ngramHits),
            )) same.merge(what, if (equal) 1 else 0, Int::plus)
            overheads += made.overheadMilliseconds
        }
        val sha256 = MessageDigest.getInstance("SHA-256").digest(pairing.cache.toBytes())
        if (way.cacheSha256 == sha256.toHex()) same[NGRAMS] = way.answers.size
        val millis = "%.3f".format(overheads.sorted()[overheads.size / 2])
        println("$way: of ${way.answers.size} answers the same $same, compared $compared, $millis ms of Kotlin a round")
        listOf(pairing, drafter, target).forEach(AutoCloseable::close)
        assertEquals(compared.associateWith { way.answers.size }, compared.associateWith { same[it] ?: 0 })
    }

    @Test
    fun `an engine answers by cost as it answers plainly, learns, and can be stopped`(@TempDir state: Path) {
        val prompts = recorded().prompts
        val models = Fixtures.realModels()
        runBlocking {
            val options = EngineOptions(
                Fixtures.operators, contextLength = 1024, threads = 1, state = state, adapter = "test",
            )
            val engine = Engine.open(models.resolve("target"), models.resolve("drafter"), options)
            for ((i, text) in prompts.take(6).withIndex()) {
                val how = AnswerOptions(maxNewTokens = 40, temperature = if (i % 2 == 0) 0.0 else 0.8, seed = 7)
                val asked = listOf(Message("user", text))
                val drafted = engine.answer(asked, how).toList()
                val plain = engine.answer(asked, how.copy(draft = false)).toList()
                assertEquals(plain.map { it.token }, drafted.map { it.token })
                assertTrue(engine.answer(asked, how).take(3).toList().size == 3) // cancelled within a round
            }
            val done = engine.statistics.value
            assertTrue(done.accepted > 0 && done.learningSteps > 0 && done.ngrams > 0) { "$done" }
            assertTrue(done.tokensPerSecond != null && done.plainTokensPerSecond != null)
            engine.save()
            engine.close()
        }
        assertTrue(Files.walk(state).use { all -> all.anyMatch { "$it".endsWith(".adapter") } })
    }

    private fun recorded(): Recorded {
        val file = Fixtures.realModels().resolve("answers.json")
        assumeTrue(Files.isRegularFile(file), "record_answers.py has not recorded any")
        return json.decodeFromString(Files.readString(file))
    }

    private val json = Json { ignoreUnknownKeys = true }

    private fun load(name: String, threads: Int) = LoadedModel.open(
        Fixtures.realModels().resolve(name), Fixtures.operators, null, threads, null, CacheMemory.direct, Progress { _, _ -> },
        drafts = true, // nothing is measured, which takes an hour where a processor is emulated
    )

    private companion object {
        const val TOKENS = "tokens"
        const val ROUNDS = "rounds"
        const val PROPOSED = "proposed"
        const val ACCEPTED = "accepted"
        const val NGRAM_HITS = "n-gram hits"
        const val NGRAMS = "n-grams"
        val ALL = listOf(TOKENS, ROUNDS, PROPOSED, ACCEPTED, NGRAM_HITS, NGRAMS)

        init {
            CoreFixture.load()
        }
    }
}
