package org.omnidraft.demo.models

import java.io.ByteArrayInputStream
import java.io.ByteArrayOutputStream
import java.io.File
import java.io.IOException
import java.io.InputStream
import java.nio.charset.Charset
import java.security.MessageDigest
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import kotlin.random.Random
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertNull
import kotlin.test.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource

class ModelStoreTest {
    @TempDir
    lateinit var folder: File

    private val root get() = File(folder, "models")
    private val store get() = ModelStore(root)
    private val files = mapOf("model.onnx" to ByteArray(300_000) { it.toByte() }, "a/b.json" to "{}".toByteArray())

    private fun import(source: Source) = store.import(source) { _, _ -> }

    @Test
    fun `a model is copied whole`() {
        val model = import(MemorySource("small", bundle(files)))
        assertEquals(listOf(model), store.list())
        assertEquals(Kind.BUNDLE, model.kind)
        val copy = assertNotNull(store.folder("small"))
        for ((name, content) in files) assertContentEquals(content, File(copy, name).readBytes())
        assertEquals(listOf("small"), root.list()?.toList())
    }

    @Test
    fun `only what the manifest lists is copied`() {
        import(MemorySource("small", bundle(files) + ("holiday.jpg" to ByteArray(9))))
        assertNull(store.folder("small")?.listFiles()?.find { it.name == "holiday.jpg" })
    }

    @Test
    fun `a zip archive with a folder in it is a model, too`() {
        val archive = zip(bundle(files, Kind.MODEL).mapKeys { "inner/${it.key}" })
        val model = import(ZipSource("packed") { ByteArrayInputStream(archive) })
        assertEquals(Kind.MODEL, model.kind)
        assertTrue(File(root, "packed/a/b.json").isFile)
    }

    @Test
    fun `a zip archive cannot write elsewhere`() {
        val archive = zip(bundle(files) + ("../../evil" to ByteArray(1)))
        import(ZipSource("packed") { ByteArrayInputStream(archive) })
        assertEquals(listOf("models"), folder.list()?.toList())
    }

    @ParameterizedTest
    @ValueSource(strings = ["../evil", "/evil", "a//b", "a/./b", "", "a\\\\b"])
    fun `a manifest cannot name files elsewhere`(name: String) {
        val manifest = """{"files": {"$name": {"size": 1, "sha256": "00"}}}"""
        val error = fails(MemorySource("bad", mapOf("omnidraft.json" to manifest.toByteArray())))
        assertTrue("names the file" in error.message.orEmpty(), error.message)
    }

    @ParameterizedTest
    @ValueSource(
        strings = [
            "", "[]", "{", "{}", """{"files": {}}""", """{"files": 3}""",
            """{"files": {"a": {"size": -1, "sha256": "00"}}}""",
            """{"files": {"a": {"size": "many", "sha256": "00"}}}""",
            """{"files": {"a": {"size": 1}}}""",
        ],
    )
    fun `a damaged manifest is named`(manifest: String) {
        val error = fails(MemorySource("bad", mapOf("omnidraft.json" to manifest.toByteArray())))
        assertTrue("omnidraft.json" in error.message.orEmpty(), error.message)
    }

    @Test
    fun `a manifest that is nested too deeply is damaged`() {
        val manifest = "{\"files\": " + "[".repeat(1_000_000)
        val error = fails(MemorySource("bad", mapOf("omnidraft.json" to manifest.toByteArray())))
        assertTrue("omnidraft.json is damaged" in error.message.orEmpty(), error.message)
    }

    @Test
    fun `a folder that is no model says what would be one`() {
        val error = fails(MemorySource("photos", mapOf("a.jpg" to ByteArray(3))))
        assertTrue("omnidraft.json" in error.message.orEmpty())
    }

    @Test
    fun `what is no zip archive is refused`() {
        fails(ZipSource("letter") { ByteArrayInputStream("Dear reader".toByteArray()) })
    }

    @Test
    fun `a damaged zip archive is a model, whole, or refused`() {
        val random = Random(11)
        val whole = zip(bundle(mapOf("model.onnx" to random.nextBytes(50), "grüße.json" to random.nextBytes(9))))
        repeat(3000) {
            val damaged = whole.copyOf(if (it % 4 == 0) random.nextInt(whole.size + 1) else whole.size)
            repeat(1 + random.nextInt(3)) { if (damaged.isNotEmpty()) damaged[random.nextInt(damaged.size)] = random.nextInt().toByte() }
            val source = ZipSource("packed") { ByteArrayInputStream(damaged) }
            try {
                import(source)
                assertEquals(50, File(root, "packed/model.onnx").length())
                store.delete("packed")
            } catch (error: ImportException) {
                assertTrue(error.message.orEmpty().isNotEmpty())
            }
            assertEquals(emptyList(), root.list()?.toList())
        }
    }

    @Test
    fun `a zip archive whose names are in an old code page is refused in words`() {
        val archive = zip(mapOf("grüße.json" to ByteArray(1)) + bundle(files), Charset.forName("IBM850"))
        assertTrue("packed" in fails(ZipSource("packed") { ByteArrayInputStream(archive) }).message.orEmpty())
    }

    @Test
    fun `sizes beyond all storage are refused`() {
        val huge = """"size": ${Long.MAX_VALUE}, "sha256": "00""""
        for (count in 1..3) {
            val entries = (1..count).joinToString { """"$it": {$huge}""" }
            val error = fails(MemorySource("bad", mapOf("omnidraft.json" to """{"files": {$entries}}""".toByteArray())))
            assertTrue("storage" in error.message.orEmpty() || "damaged" in error.message.orEmpty(), error.message)
        }
    }

    @Test
    fun `one wrong bit in any file is found`() {
        for (name in files.keys) {
            val changed = bundle(files).toMutableMap()
            changed[name] = changed.getValue(name).clone().also { it[it.size / 2] = (it[it.size / 2] + 1).toByte() }
            val error = fails(MemorySource("small", changed))
            assertTrue(name in error.message.orEmpty() && "sha256" in error.message.orEmpty())
        }
    }

    @Test
    fun `a file that is too long, too short or missing is found`() {
        val whole = bundle(files)
        val long = whole.getValue("model.onnx") + 0
        for (wrong in listOf(long, long.copyOf(7))) {
            val error = fails(MemorySource("small", whole + ("model.onnx" to wrong)))
            assertTrue("model.onnx" in error.message.orEmpty())
        }
        val error = fails(MemorySource("small", whole - "model.onnx"))
        assertTrue("lacks model.onnx" in error.message.orEmpty())
    }

    @Test
    fun `a source that breaks off leaves nothing`() {
        val source = object : Source {
            override val name = "card"

            override fun visit(visit: (String, InputStream) -> Boolean) {
                val manifest = bundle(files).getValue("omnidraft.json")
                if (visit("omnidraft.json", ByteArrayInputStream(manifest))) {
                    throw IOException("the card was removed")
                }
            }
        }
        assertTrue("the card was removed" in fails(source).message.orEmpty())
    }

    @Test
    fun `a cancelled import leaves nothing`() {
        assertFailsWith<InterruptedException> {
            store.import(MemorySource("small", bundle(files))) { _, _ -> throw InterruptedException() }
        }
        assertEquals(emptyList(), root.list()?.toList())
    }

    @Test
    fun `progress counts every byte`() {
        val seen = mutableListOf<Pair<Long, Long>>()
        store.import(MemorySource("small", bundle(files))) { done, total -> seen += done to total }
        val total = files.values.sumOf { it.size.toLong() }
        assertEquals(total to total, seen.last())
        assertEquals(seen.sortedBy { it.first }, seen)
    }

    @Test
    fun `a second model of a name gets another`() {
        import(MemorySource("small", bundle(files)))
        assertEquals("small (2)", import(MemorySource("small", bundle(files))).name)
        assertEquals("a_b", import(MemorySource("a/b", bundle(files))).name)
        assertEquals(3, store.list().size)
    }

    @Test
    fun `what a process left half done is cleaned up and named`() {
        import(MemorySource("small", bundle(files)))
        File(root, ".importing-large/a").mkdirs()
        File(root, ".deleting-old").mkdirs()
        assertEquals(listOf("large"), store.cleanUp())
        assertEquals(listOf("small"), root.list()?.toList())
        assertEquals(emptyList(), store.cleanUp())
    }

    @Test
    fun `a deleted model is gone`() {
        import(MemorySource("small", bundle(files)))
        store.delete("small")
        store.delete("small")
        assertEquals(emptyList(), store.list())
        assertEquals(emptyList(), root.list()?.toList())
    }

    private fun fails(source: Source): ImportException {
        val error = assertFailsWith<ImportException> { import(source) }
        assertEquals(emptyList(), root.list()?.toList(), "something was left")
        return error
    }
}

/** Files by their paths. */
class MemorySource(override val name: String, private val files: Map<String, ByteArray>) : Source {
    override fun visit(visit: (path: String, content: InputStream) -> Boolean) {
        files.all { (path, content) -> visit(path, ByteArrayInputStream(content)) }
    }
}

/** [files] with a manifest that lists them. */
fun bundle(files: Map<String, ByteArray>, kind: Kind = Kind.BUNDLE): Map<String, ByteArray> {
    val entries = files.map { (name, content) ->
        val digest = MessageDigest.getInstance("SHA-256").digest(content)
        val sha256 = digest.joinToString("") { "%02x".format(it) }
        """"$name": {"size": ${content.size}, "sha256": "$sha256"}"""
    }
    return files + (kind.manifest to """{"files": {${entries.joinToString()}}}""".toByteArray())
}

fun zip(files: Map<String, ByteArray>, names: Charset = Charsets.UTF_8): ByteArray {
    val bytes = ByteArrayOutputStream()
    ZipOutputStream(bytes, names).use { zip ->
        for ((name, content) in files) {
            zip.putNextEntry(ZipEntry(name))
            zip.write(content)
        }
    }
    return bytes.toByteArray()
}
