package org.omnidraft.engine

import java.nio.file.Path
import java.util.concurrent.TimeUnit
import kotlin.io.path.createDirectories
import kotlin.io.path.createFile
import kotlin.io.path.readBytes
import kotlin.io.path.readText
import kotlin.io.path.writeBytes
import kotlin.io.path.writeText
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.omnidraft.engine.core.CoreFixture
import org.omnidraft.engine.core.CoreLibrary
import org.omnidraft.engine.files.MANIFEST_FILE
import org.omnidraft.engine.models.Invariance
import org.omnidraft.engine.models.surroundings
import org.omnidraft.engine.text.Message

class EngineTest {
    @TempDir
    lateinit var folder: Path

    private val target by lazy { Fixtures.copy("target-4bit", folder) }
    private val manifest by lazy { target.resolve(MANIFEST_FILE) }
    private val drafter = Fixtures.models.resolve("drafter-own")
    private val asked = listOf(Message("user", "Why is the sky blue?"))
    private val how = AnswerOptions(maxNewTokens = 40)

    // One thread: several wait for each other where other programs run too.
    private fun options(memoryLimit: Long? = null) =
        EngineOptions(Fixtures.operators, threads = 1, memoryLimit = memoryLimit)

    private fun open(options: EngineOptions = options(), drafter: Path? = this.drafter) =
        runBlocking { Engine.open(target, drafter, options) }

    private fun opened(): Invariance? = open(drafter = null).use { it.invariance }

    private fun recorded(): JsonObject = Json.parseToJsonElement(manifest.readText()).jsonObject

    private fun record(vararg changes: Pair<String, JsonElement>) {
        val report = JsonObject(recorded().getValue("invariance").jsonObject + changes)
        manifest.writeText(JsonObject(recorded() + ("invariance" to report)).toString())
    }

    private val elsewhere = "kernels" to JsonPrimitive("0.0.9 0123456789abcdef")

    @Test
    fun `a target's batch invariance is measured once on a device, and kept in its manifest`() {
        val before = recorded()
        assertEquals(0f, opened()!!.difference)
        val report = recorded().getValue("invariance").jsonObject
        assertEquals(before - "invariance", recorded() - "invariance")
        assertEquals(JsonPrimitive(true), report["batch_invariant"])
        assertTrue(report.entries.containsAll(surroundings(Fixtures.operators).entries))

        // What is recorded for this device is believed.
        val known = """{"1": {"difference": 0.5, "least_pass": 2}, "4": {"difference": 0.0, "least_pass": 1}}"""
        record("measured" to Json.parseToJsonElement(known))
        assertEquals(Invariance(0.5f, 2), opened())
        for (odd in listOf("{\"1\": {\"difference\": -1.0, \"least_pass\": 2}}", "{\"1\": 3}", "[]", "{\"a\": null}")) {
            record("measured" to Json.parseToJsonElement(odd))
            assertEquals(0f, opened()!!.difference, odd)
        }
        // What was found elsewhere is not.
        record("measured" to Json.parseToJsonElement(known), elsewhere)
        assertEquals(0f, opened()!!.difference)
        assertEquals(setOf("1"), recorded().getValue("invariance").jsonObject.getValue("measured").jsonObject.keys)
    }

    @Test
    fun `a manifest that cannot be written keeps nobody from answering`() {
        record(elsewhere)
        val before = manifest.readText()
        target.resolve(".$MANIFEST_FILE.tmp").createDirectories().resolve("in the way").createFile()
        assertEquals(0f, opened()!!.difference)
        assertEquals(before, manifest.readText())
    }

    @Test
    fun `a model that was made to draft is not measured`() {
        manifest.writeText(JsonObject(recorded() + ("invariance" to JsonObject(emptyMap()))).toString())
        assertEquals(null, opened())
    }

    @Test
    fun `models beyond the memory limit are refused in words`() {
        val error = assertThrows(NotEnoughMemoryException::class.java) {
            open(options(memoryLimit = 50_000_000))
        }
        assertTrue("The model target-4bit beside its drafter (" in error.message!!, error.message)
        assertTrue("there are" in error.message!! && "smaller model" in error.message!!, error.message)
        open(options(memoryLimit = 200_000_000)).close()
    }

    @Test
    fun `an answer that is cancelled between any two tokens leaves an engine that answers the same`() {
        open().use { engine ->
            runBlocking {
                // Where tokens come from changes, as n-grams are learned from each answer.
                suspend fun answer(count: Int = Int.MAX_VALUE, how: AnswerOptions = this@EngineTest.how) =
                    engine.answer(asked, how).take(count).toList().map { it.token to it.text }
                val whole = answer()
                assertTrue(whole.size >= 10) { "$whole" }
                for (count in 1..whole.size) assertEquals(whole.take(count), answer(count))
                assertEquals(whole, answer(how = how.copy(draft = false)))
            }
        }
    }

    @Test
    fun `the engine has OmniDraft's version`() {
        assertTrue("__version__ = \"$VERSION\"" in Fixtures.root.resolve("omnidraft/__init__.py").readText())
    }

    @Test
    fun `a closed engine says so`() {
        val engine = open()
        engine.close()
        val error = assertThrows(OmniDraftException::class.java) { runBlocking { engine.answer(asked).toList() } }
        assertTrue("has been closed" in error.message!!, error.message)
        engine.close()
    }

    @Test
    fun `a half-copied or damaged model is refused in words`() {
        for (place in listOf(target, Fixtures.copy("drafter-own", folder))) {
            val data = place.resolve("model.onnx.data")
            val whole = data.readBytes()
            val other = if (place == target) drafter else place
            for ((content, words) in listOf(
                whole.copyOf(whole.size / 2) to "written or copied only in part",
                whole.copyOf().also { it[whole.size / 2]++ } to "fails its checksum",
            )) {
                data.writeBytes(content)
                val error = assertThrows(DamagedFileException::class.java) { open(drafter = other) }
                assertTrue(words in error.message!! && "model.onnx.data" in error.message!!, error.message)
            }
            data.writeBytes(whole)
        }
    }

    @Test
    fun `libraries for another kind of processor are refused in words`() {
        val core = CoreFixture.library.toString()
        val runtime = folder.resolve("runtime").createDirectories()
        forAnother(Path.of(core)).copyInto(runtime, "libonnxruntime.so")
        assertEquals("opened", openedElsewhere(core, Fixtures.operators))
        val refusals = mapOf(
            "The library of OmniDraft's core cannot be loaded" to
                openedElsewhere("${forAnother(Path.of(core))}", Fixtures.operators),
            "refuses OmniDraft's operators" to openedElsewhere(core, "${forAnother(Path.of(Fixtures.operators))}"),
            "ONNX Runtime's library cannot be loaded" to
                openedElsewhere(core, Fixtures.operators, "-Donnxruntime.native.path=$runtime"),
        )
        for ((words, said) in refusals) {
            assertTrue(said.startsWith("refused: ") && words in said && said.endsWith("."), said)
        }
    }

    /** A copy of a library that says it is for another kind of processor. */
    private fun forAnother(library: Path): Path {
        val bytes = library.readBytes()
        bytes[MACHINE] = if (bytes[MACHINE] == X86_64) AARCH64 else X86_64
        return folder.resolve("other-${library.fileName}").also { it.writeBytes(bytes) }
    }

    private fun Path.copyInto(place: Path, name: String) = place.resolve(name).writeBytes(readBytes())

    private fun openedElsewhere(core: String, operators: String, vararg options: String): String {
        val process = ProcessBuilder(
            Fixtures.java, *options,
            "-D${CoreLibrary.PROPERTY}=$core", "-cp", System.getProperty("java.class.path"),
            OpenedElsewhere::class.java.name, "$target", "$drafter", operators,
        ).redirectErrorStream(true).start()
        val said = process.inputStream.bufferedReader().readLines()
        assertTrue(process.waitFor(60, TimeUnit.SECONDS))
        return said.last()
    }

    private companion object {
        init {
            CoreFixture.load()
        }

        const val MACHINE = 18 // in an ELF file
        const val X86_64 = 0x3e.toByte()
        const val AARCH64 = 0xb7.toByte()
    }
}
