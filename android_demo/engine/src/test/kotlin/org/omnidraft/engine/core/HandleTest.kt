package org.omnidraft.engine.core

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.FloatBuffer
import java.nio.file.Path
import java.util.concurrent.Callable
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit
import kotlin.io.path.createDirectory
import kotlin.io.path.writeText
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNotEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertSame
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.omnidraft.engine.core.CoreFixture.refused

class HandleTest {
    private val world = World(7, surfaces("a", "b", "bb", "\n", null), surfaces("a", "b", "ab", "abb", "\n", null), 9)
    private val cache = NgramCache(world.pair)
    private val speller = Speller(world.pair, world::segment)
    private val policy = FixedPolicy(3)

    private fun speculation(policy: Policy = this.policy, speller: Speller = this.speller) =
        Speculation(cache, speller, policy, Lookup(6), maxLength = 64)

    private fun floats(count: Int): FloatBuffer =
        ByteBuffer.allocateDirect(4 * count).order(ByteOrder.nativeOrder()).asFloatBuffer()

    @Test
    fun `a closed handle refuses calls, and may be closed again`() {
        val vocabulary = Vocabulary(world.target)
        val lookup = Lookup(6)
        val costs = Costs(mapOf(256 to mapOf(1 to 1.0)), mapOf(1 to 0.1))
        val generation = Generation(6)
        val handles = listOf(vocabulary, world.pair, cache, speller, policy, lookup, costs, generation)
        repeat(2) { handles.forEach { it.close() } }
        val calls = listOf<() -> Any?>(
            { VocabularyPair(vocabulary, vocabulary) },
            { world.pair.toTarget(0) },
            { NgramCache(world.pair) },
            { cache.size },
            { cache.toBytes() },
            { Generation(6, speculation = speculation()) },
            { CostAwarePolicy(costs) },
            { costs.hasMoved },
            { generation.read(intArrayOf(0)) },
            { generation.score() },
        )
        for (call in calls) {
            val error = assertThrows(IllegalStateException::class.java) { call() }
            assertTrue(error.message!!.endsWith("has been closed")) { error.message }
        }
    }

    @Test
    fun `a generation works on when what it rests on is closed`() {
        val generation = Generation(6, speculation = speculation())
        listOf(cache, speller, policy, world.pair).forEach { it.close() }
        generation.read(intArrayOf(0, 2, 5))
        assertTrue(generation.begin(5, 2, 50))
        generation.drafted(floats(5), 0.0)
        generation.fail()
        generation.score()
        generation.close()
    }

    @Test
    fun `refusals say why`() {
        assertTrue("top-p" in refused(CoreStatus.INVALID_ARGUMENT) { Sampling(topP = 2.0) })
        refused(CoreStatus.INVALID_TOKEN) { world.pair.toDraft(6) }
        assertTrue("awaits read()" in refused(CoreStatus.WRONG_ORDER) { Generation(6).score() })
        assertTrue("least one token" in refused(CoreStatus.INVALID_ARGUMENT) { Vocabulary(emptyList()) })
        val generation = Generation(6)
        generation.read(intArrayOf(0))
        generation.begin(5, 0, 50)
        generation.score()
        refused(CoreStatus.INVALID_ARGUMENT) { generation.scored(floats(5)) }
        val logits = floats(6).put(0, Float.NaN)
        refused(CoreStatus.NOT_NUMBERS) { generation.scored(logits) }
        logits.put(0, 1f)
        assertEquals(listOf(0), generation.scored(logits).tokens.toList())
        val other = World(1, surfaces("x"), surfaces("xx"), 9)
        assertTrue("two pairs" in refused(CoreStatus.INVALID_ARGUMENT) {
            Generation(6, speculation = speculation(speller = Speller(other.pair, other::segment)))
        })
        refused(CoreStatus.INVALID_ARGUMENT) { Costs(emptyMap(), mapOf(1 to 1.0)) }
        refused(CoreStatus.INVALID_ARGUMENT) { FixedPolicy(1, 2.0) }
        refused(CoreStatus.INVALID_ARGUMENT) { Lookup(6, 1) }
        assertThrows(IllegalArgumentException::class.java) { FixedPolicy(-1) }
        assertThrows(IllegalArgumentException::class.java) { CacheLimits(maxEntries = -1) }
        assertThrows(IllegalArgumentException::class.java) { Vocabulary(world.target, listOf("a")) }
    }

    @Test
    fun `logits lie in direct buffers, of which a part may be given`() {
        val generation = Generation(6)
        generation.read(intArrayOf(0))
        generation.begin(5, 0, 50)
        generation.score()
        assertThrows(IllegalArgumentException::class.java) { generation.scored(FloatBuffer.allocate(6)) }
        assertThrows(IllegalArgumentException::class.java) {
            generation.scored(ByteBuffer.allocateDirect(24).order(ByteOrder.BIG_ENDIAN).asFloatBuffer())
        }
        val part = floats(20).put(13, 1f)
        part.position(10).limit(16)
        assertEquals(listOf(3), generation.scored(part).tokens.toList())
        assertEquals(10, part.position())
    }

    @Test
    fun `what a callback throws comes out of the call`() {
        val thrown = RuntimeException("no such bytes: \uD83E\uDD14")
        var failing: Throwable? = thrown
        val segment = Segment { bytes ->
            failing?.let { throw it }
            world.segment(bytes)
        }
        assertSame(thrown, assertThrows(RuntimeException::class.java) { Speller(world.pair, segment) })
        failing = null
        val speller = Speller(world.pair, segment)
        val generation = Generation(6, speculation = speculation(speller = speller))
        failing = thrown
        assertSame(thrown, assertThrows(RuntimeException::class.java) { generation.read(intArrayOf(2)) })
        refused(CoreStatus.WRONG_ORDER) { generation.read(intArrayOf(2)) }
        failing = null
        assertEquals(1, Generation(6, speculation = speculation(speller = speller)).read(intArrayOf(2)))
        refused(CoreStatus.CALLBACK) { Speller(world.pair, { IntArray(9) }) }
        refused(CoreStatus.INVALID_TOKEN) { Speller(world.pair, { intArrayOf(9) }) }
        Speller(world.pair, { null }).close()
    }

    @Test
    fun `caches are kept in files and bytes`(@TempDir folder: Path) {
        assertTrue(cache.observe(2, intArrayOf(0, 1)))
        assertFalse(cache.observe(2, intArrayOf(0, 1)))
        refused(CoreStatus.INVALID_TOKEN) { cache.observe(9, intArrayOf(0, 1)) }
        assertTrue(cache.memoryBytes > 0)
        val file = folder.resolve("n-grams \u00e9 \uD83E\uDD14")
        cache.save(file)
        assertEquals(1, NgramCache.load(file, world.pair).size)
        assertEquals(1, NgramCache.fromBytes(cache.toBytes(), world.pair, CacheLimits(5)).size)
        file.writeText("no cache")
        assertTrue("\uD83E\uDD14" in refused(CoreStatus.DAMAGED) { NgramCache.load(file, world.pair) })
        refused(CoreStatus.FILE) { NgramCache.load(folder.resolve("none"), world.pair) }
        refused(CoreStatus.FILE) { cache.save(folder.resolve("folder").createDirectory()) }
        val other = World(1, surfaces("x"), surfaces("xx"), 9)
        refused(CoreStatus.MISMATCH) { NgramCache.fromBytes(cache.toBytes(), other.pair) }
    }

    @Test
    fun `a pair knows which tokens stand for each other`() {
        assertEquals(3, world.pair.directCount)
        assertEquals(4, world.pair.toTarget(3))
        assertNull(world.pair.toTarget(2))
        assertNull(world.pair.toDraft(2))
        assertNotEquals(0L, world.pair.fingerprint)
        val pieces = listOf("a", "b", "c", "d", "e")
        val named = Vocabulary(world.drafter, pieces, byteTokens = listOf(0))
        assertEquals(4, VocabularyPair(named, named, MappingRule.PAPER).directCount)
    }

    @Test
    fun `costs are kept`() {
        val costs = Costs(mapOf(256 to mapOf(1 to 1.0, 3 to 2.0), 1024 to mapOf(1 to 4.0)), mapOf(1 to 0.5))
        assertTrue(costs.hasMoved)
        costs.written()
        assertFalse(costs.hasMoved)
        assertEquals(listOf(256, 1024), costs.bands)
        assertEquals(1.5, costs.targetSeconds(256, 2))
        assertEquals(4.0, costs.targetSeconds(1024, 1))
        assertEquals(0.5, costs.drafterSeconds(1))
        refused(CoreStatus.INVALID_ARGUMENT) { costs.targetSeconds(4096, 1) }
    }

    @Test
    fun `threads may share handles, and close them meanwhile`() {
        val costs = Costs(mapOf(256 to mapOf(1 to 0.01, 8 to 0.02)), mapOf(1 to 0.001, 8 to 0.002))
        val policy = CostAwarePolicy(costs)
        val threads = 4
        val pool = Executors.newFixedThreadPool(threads)
        val start = CountDownLatch(1)
        val answers = List(threads) { thread ->
            pool.submit(Callable {
                start.await()
                var rounds = 0
                repeat(200) { turn ->
                    // Of two that share a cache at once, one may find it changed within its round.
                    try {
                        Generation(6, speculation = speculation(policy)).use { generation ->
                            generation.read(intArrayOf(turn % 6, 2, thread))
                            if (generation.begin(9, 2, 50)) generation.drafted(floats(5), 0.001)
                            generation.fail()
                            val rows = generation.score().rows
                            generation.scored(floats(6 * rows))
                            generation.settle(0.01, 0.0)
                            cache.observe(3, intArrayOf(0, 2))
                            if (thread == 0 && turn == 150) cache.close()
                        }
                        rounds++
                    } catch (error: CoreException) {
                        assertTrue("changed" in error.message!!) { error.message }
                    } catch (error: IllegalStateException) {
                        assertTrue("closed" in error.message!!) { error.message }
                    }
                }
                rounds
            })
        }
        start.countDown()
        assertTrue(answers.sumOf { it.get(60, TimeUnit.SECONDS) } >= 150)
        pool.shutdown()
    }

    @Test
    fun `the library is the one that was loaded`() {
        assertThrows(UnsatisfiedLinkError::class.java) { CoreLibrary.load("/another/library.so") }
    }

    private companion object {
        init {
            CoreFixture.load()
        }

        fun surfaces(vararg texts: String?) = texts.map { it?.encodeToByteArray() }
    }
}
