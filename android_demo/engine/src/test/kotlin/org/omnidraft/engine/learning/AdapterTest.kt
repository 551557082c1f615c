package org.omnidraft.engine.learning

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.file.Files
import java.nio.file.Path
import java.util.concurrent.TimeUnit
import kotlin.io.path.copyTo
import kotlin.io.path.fileSize
import kotlin.io.path.listDirectoryEntries
import kotlin.io.path.readBytes
import kotlin.io.path.readText
import kotlin.io.path.writeBytes
import kotlin.random.Random
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.Fixtures
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.models.OnnxAdapterFile
import org.omnidraft.engine.models.OnnxDescription
import org.omnidraft.engine.models.RecordedPasses

class AdapterTest {
    @TempDir
    lateinit var folder: Path

    private val recorded = Fixtures.resources.resolve("learning")
    private val sizes = OnnxDescription.read(Fixtures.models.resolve("drafter-own")).loraSizes
    private val drafter = ModelKey("tiny – é", "a".repeat(64))
    private val target = ModelKey("target", "0123456789abcdef".repeat(4))

    @Test
    fun `Python's adapters are read`() {
        val adapter = AdapterFile.read(recorded.resolve("tiny.adapter"))
        assertEquals(RecordedPasses.adapter(sizes, 4, 1), adapter.lora)
        assertEquals(listOf(drafter, target, 3, 2, 4), adapter.metadata.run { listOf(this.drafter, this.target, prompts, updates, rank) })
        assertEquals(JsonPrimitive("é😀"), adapter.metadata.figures["text"])
        assertArrayEquals(ByteArray(256) { it.toByte() }, adapter.ngrams)
        val told = Json.parseToJsonElement(recorded.resolve("tiny.json").readText()).jsonObject
        assertEquals(told.getValue("head").jsonObject.keys, adapter.head.keys)
        assertEquals(listOf(3, 2), adapter.head.getValue("w1").shape)
        val steps = adapter.optimizer.getValue("steps")
        assertEquals("I64" to emptyList<Int>(), steps.dtype to steps.shape)
        assertEquals(7, steps.bytes.duplicate().order(ByteOrder.LITTLE_ENDIAN).getLong(0))
        assertEquals("BOOL", adapter.optimizer.getValue("seen").dtype)
        assertTrue(AdapterFile.read(recorded.resolve("tiny.adapter"), optimizer = false).optimizer.isEmpty())
    }

    @Test
    fun `what is written is Python's file but for its order`() {
        val adapter = AdapterFile.read(recorded.resolve("tiny.adapter"))
        val path = folder.resolve("a.adapter")
        AdapterFile.write(path, adapter)
        val ours = SafetensorsFile(path)
        val python = SafetensorsFile(recorded.resolve("tiny.adapter"))
        assertEquals(python.names, ours.names)
        for (name in ours.names) {
            val (left, right) = listOf(ours, python).map { it.read(name) }
            assertEquals(right.dtype to right.shape, left.dtype to left.shape, name)
            assertEquals(right.bytes, left.bytes, name)
        }
        val (left, right) = listOf(ours, python).map { file -> file.metadata.filterKeys { it != "header_crc32" }.mapValues { Json.parseToJsonElement(it.value) } }
        assertEquals(right.getValue("crc32"), left.getValue("crc32"))
        assertEquals(right.getValue("omnidraft_adapter"), left.getValue("omnidraft_adapter"))
    }

    @Test
    fun `ONNX Runtime's adapters are read and written`() {
        val lora = RecordedPasses.adapter(sizes, 4, 1)
        assertEquals(lora, OnnxAdapterFile.read(recorded.resolve("tiny.onnx_adapter")))
        val path = folder.resolve("a.onnx_adapter")
        OnnxAdapterFile.write(path, lora)
        assertEquals(lora, OnnxAdapterFile.read(path))
        val content = path.readBytes()
        for (cut in listOf(0, 3, 40, content.size / 2, content.size - 9)) {
            path.writeBytes(content.copyOf(cut))
            assertThrows(DamagedFileException::class.java) { OnnxAdapterFile.read(path) }
        }
        assertThrows(ModelNotFoundException::class.java) { OnnxAdapterFile.read(folder.resolve("none")) }
    }

    @Test
    fun `damage of any byte is found`() {
        val content = recorded.resolve("tiny.adapter").readBytes()
        val path = folder.resolve("a.adapter")
        val random = Random(1)
        val header = ByteBuffer.wrap(content).order(ByteOrder.LITTLE_ENDIAN).getLong(0).toInt() + 8
        val places = List(60) { random.nextInt(header) } + List(60) { random.nextInt(header, content.size) }
        val whole = AdapterFile.read(recorded.resolve("tiny.adapter"))
        var found = 0
        for (place in places) {
            val damaged = content.copyOf().also { it[place] = (it[place].toInt() xor (1 shl random.nextInt(7))).toByte() }
            path.writeBytes(damaged)
            try {
                val read = AdapterFile.read(path) // white space of the header may become other white space
                assertEquals(whole.lora, read.lora)
                assertEquals(whole.metadata, read.metadata)
                assertArrayEquals(whole.ngrams, read.ngrams)
            } catch (_: OmniDraftException) {
                found++
            }
        }
        assertTrue(found > 100, "of ${places.size} damages $found were found")
        for (cut in listOf(0, 7, 8, header - 1, header, content.size - 1)) {
            path.writeBytes(content.copyOf(cut))
            assertThrows(DamagedFileException::class.java) { AdapterFile.read(path) }
        }
        path.writeBytes(content + 0)
        assertThrows(DamagedFileException::class.java) { AdapterFile.read(path) }
    }

    @Test
    fun `a newer version's adapter is not taken for a damaged one`() {
        val adapter = KilledSaves.adapter(1)
        val newer = adapter.metadata.copy(schemaVersion = 2)
        folder.resolve("a.adapter").writeBytes(AdapterFile.content(adapter, newer).array())
        val error = assertThrows(OmniDraftException::class.java) { AdapterFile.read(folder.resolve("a.adapter")) }
        assertTrue("newer omnidraft" in error.message!!, error.message)
        assertThrows(OmniDraftException::class.java) { AdapterStore(folder).save("a", adapter) }
    }

    @Test
    fun `a store keeps, lists, removes, and tells whose adapters are`() {
        val store = AdapterStore(folder.resolve("adapters"))
        assertEquals(emptyList<String>(), store.list().map { it.name })
        assertEquals(emptyList<String>(), store.save("math", KilledSaves.adapter(1)))
        store.save("code", KilledSaves.adapter(2))
        store.load("math", KilledSaves.drafter, KilledSaves.target)
        assertEquals(listOf("math", "code"), store.list().map { it.name })
        val error = assertThrows(OmniDraftException::class.java) { store.load("math", drafter, KilledSaves.target) }
        assertTrue("belongs to the drafter drafter (dddddddddddd)" in error.message!!, error.message)
        for (name in listOf("", "..", "A", "a/b", ".a")) {
            assertThrows(OmniDraftException::class.java) { store.save(name, KilledSaves.adapter(1)) }
        }
        store.folder.resolve("odd.adapter").writeBytes(byteArrayOf(1, 2, 3))
        assertTrue("is damaged" in store.list().single { it.name == "odd" }.problem)
        store.save("odd", KilledSaves.adapter(3))
        store.delete("odd")
        assertThrows(ModelNotFoundException::class.java) { store.delete("odd") }
        assertThrows(ModelNotFoundException::class.java) { store.load("odd", KilledSaves.drafter, KilledSaves.target) }
    }

    @Test
    fun `the least recently used adapters make room`() {
        val size = folder.resolve("a").also { AdapterFile.write(it, KilledSaves.adapter(1)) }.fileSize()
        val store = AdapterStore(folder.resolve("adapters"), maxBytes = 2 * size + size / 2)
        for (name in listOf("a", "b")) store.save(name, KilledSaves.adapter(1))
        store.load("a", KilledSaves.drafter, KilledSaves.target)
        assertEquals(listOf("b"), store.save("c", KilledSaves.adapter(1)))
        assertThrows(OmniDraftException::class.java) {
            AdapterStore(folder.resolve("small"), maxBytes = 1000).save("a", KilledSaves.adapter(1))
        }
        assertTrue(Files.notExists(folder.resolve("small/a.adapter")))
    }

    @Test
    fun `a kill leaves the old adapter or the new one, whole`() {
        val random = Random(4)
        var saved = 0
        val told = folder.resolve("told")
        val store = folder.resolve("adapters")
        fun lines() = told.readText().let { it.substring(0, it.lastIndexOf('\n') + 1).lines().filter(String::isNotEmpty) }
        // OMNIDRAFT_KILLS asks for more: each is a process of its own, which takes a second.
        repeat(System.getenv("OMNIDRAFT_KILLS")?.toInt() ?: 6) {
            val process = ProcessBuilder(
                Fixtures.java, "-cp", System.getProperty("java.class.path"), KilledSaves::class.java.name,
                store.toString(), saved.toString(),
            ).redirectOutput(told.toFile()).start()
            val enough = 1 + random.nextInt(3)
            while (process.isAlive && lines().size < enough) Thread.sleep(1)
            process.destroyForcibly().waitFor(60, TimeUnit.SECONDS)
            val last = lines().last().toInt()
            val adapter = AdapterStore(store).load("task", KilledSaves.drafter, KilledSaves.target)
            saved = adapter.metadata.updates
            assertTrue(saved == last || saved == last + 1, "$saved was read, $last was told")
            assertEquals(KilledSaves.adapter(saved).lora, adapter.lora)
            assertEquals(listOf("task.adapter"), store.listDirectoryEntries().map { it.fileName.toString() })
        }
    }

    @Test
    fun `what cannot be written says so and leaves what is there`() {
        val path = folder.resolve("none/a.adapter")
        val error = assertThrows(OmniDraftException::class.java) { AdapterFile.write(path, KilledSaves.adapter(1)) }
        assertTrue("cannot be written" in error.message!!, error.message)
        val diverged = KilledSaves.adapter(1).lora.mapValues { it.value.copy().also { m -> m.values[3] = Float.NaN } }
        val before = recorded.resolve("tiny.adapter").copyTo(folder.resolve("b.adapter")).readBytes()
        val wrong = assertThrows(OmniDraftException::class.java) {
            AdapterFile.write(folder.resolve("b.adapter"), Adapter(KilledSaves.adapter(1).metadata, diverged))
        }
        assertTrue("learning diverged" in wrong.message!!, wrong.message)
        assertArrayEquals(before, folder.resolve("b.adapter").readBytes())
    }
}
