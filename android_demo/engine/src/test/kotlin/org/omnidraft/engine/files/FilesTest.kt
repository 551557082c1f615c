package org.omnidraft.engine.files

import java.nio.file.Files
import java.nio.file.Path
import kotlin.io.path.copyTo
import kotlin.io.path.createDirectory
import kotlin.io.path.deleteExisting
import kotlin.io.path.readBytes
import kotlin.io.path.readText
import kotlin.io.path.writeBytes
import kotlin.io.path.writeText
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
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.Fixtures
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.models.OnnxDescription

class FilesTest {
    @TempDir
    lateinit var scratch: Path

    private fun copy(name: String) = Fixtures.copy(name, scratch)

    private fun refused(folder: Path, vararg words: String) = refusedAs<DamagedFileException>(folder, *words)

    private inline fun <reified T : OmniDraftException> refusedAs(folder: Path, vararg words: String) {
        val error = assertThrows(OmniDraftException::class.java) { OnnxDescription.read(folder) }
        assertEquals(T::class, error::class, error.message)
        for (word in words) assertTrue(word in error.message!!, "'$word' is not in: ${error.message}")
    }

    /** Change a manifest; a bundle's digest is made to agree. */
    private fun edit(path: Path, change: (Map<String, JsonElement>) -> Map<String, JsonElement>) {
        val values = change(Json.parseToJsonElement(path.readText()).jsonObject)
        val digest = if ("digest" in values) {
            mapOf("digest" to JsonPrimitive(sha256(canonicalJson(JsonObject(values - "digest")).encodeToByteArray())))
        } else {
            emptyMap()
        }
        path.writeText(JsonObject(values + digest).toString())
    }

    @Test
    fun `whole folders are read`() {
        val seen = ArrayList<Long>()
        val target = OnnxDescription.read(Fixtures.models.resolve("target-4bit")) { done, total ->
            assertTrue(done <= total)
            seen += done
        }
        assertEquals(listOf(272, 320), listOf(target.vocabSize, target.contextLength))
        assertEquals(seen.sorted(), seen)
        assertEquals(Manifest.load(Fixtures.models.resolve("target-4bit")).size, seen.last())
        val drafter = OnnxDescription.read(Fixtures.models.resolve("drafter-own"))
        assertEquals(32, drafter.loraSizes.getValue("lora.0.qkv.A"))
        assertEquals(setOf("qkv", "o", "gate_up", "down"), drafter.loraSizes.keys.map { it.split('.')[2] }.toSet())
        val bundle = Bundle.load(Fixtures.models.resolve("drafter-own"))
        assertEquals(listOf("decoder", "training"), bundle.graphs.map { it.role })
    }

    @Test
    fun `what is no model is named`() {
        refusedAs<ModelNotFoundException>(scratch, "holds no converted model (omnidraft-model.json)")
        val missing = assertThrows(ModelNotFoundException::class.java) { Bundle.load(scratch.resolve("none")) }
        assertTrue("does not exist" in missing.message!!)
    }

    @Test
    fun `a file that is missing, cut, damaged or exchanged is found`() {
        for (name in listOf("target-4bit", "drafter-any")) {
            val folder = copy(name)
            val data = folder.resolve("model.onnx.data")
            val whole = data.readBytes()
            data.writeBytes(whole.copyOf(whole.size / 2))
            refused(folder, "model.onnx.data has ${whole.size / 2} bytes, ${whole.size} expected", "only in part")
            data.writeBytes(whole + 0)
            refused(folder, "has ${whole.size + 1} bytes")
            data.writeBytes(whole.copyOf().also { it[whole.size / 3]++ })
            refused(folder, "model.onnx.data fails its checksum (sha256)", "copy its folder again")
            OnnxDescription.read(folder, checksums = false)
            data.deleteExisting()
            refused(folder, "model.onnx.data is missing")
            data.createDirectory()
            refused(folder, "model.onnx.data is missing")
        }
    }

    @Test
    fun `other versions' manifests are told from damaged ones`() {
        for ((name, file) in listOf("target-4bit" to MANIFEST_FILE, "drafter-any" to BUNDLE_FILE)) {
            val path = copy(name).resolve(file)
            val content = path.readText()
            edit(path) { it + ("schema_version" to JsonPrimitive(99)) }
            refused(path.parent, "has schema version 99, this program reads", "Update this program")
            path.writeText(content.replaceFirst("\"schema_version\"", "\"schema\""))
            refused(path.parent, "has schema version null")
            for (cut in listOf("", "{", content.dropLast(content.length / 2), "[1]", "null")) {
                path.writeText(cut)
                refused(path.parent, path.toString())
            }
            path.writeBytes(byteArrayOf(0x7b, 0xff.toByte(), 0x7d))
            refused(path.parent, "UTF-8")
            path.writeText("[".repeat(100_000))
            refused(path.parent, path.toString())
        }
    }

    @Test
    fun `values that no program writes are refused`() {
        val path = copy("target-4bit").resolve(MANIFEST_FILE)
        val content = path.readText()
        val wrong = mapOf(
            "layers" to JsonPrimitive(0), "max_threads" to JsonPrimitive(-1), "files" to JsonObject(emptyMap()),
            "vocab_size" to JsonPrimitive("many"), "head_size" to JsonPrimitive(1L shl 40), "unknown" to JsonPrimitive(1),
        )
        for ((name, value) in wrong) {
            edit(path) { it + (name to value) }
            refused(path.parent, "is damaged")
            path.writeText(content)
        }
        edit(path) { it - "architecture" }
        refused(path.parent, "architecture")
    }

    @Test
    fun `a bundle that was edited is refused`() {
        val path = copy("drafter-any").resolve(BUNDLE_FILE)
        path.writeText(path.readText().replace("\"quantization\": \"int8\"", "\"quantization\": \"int4\""))
        refused(path.parent, "was edited since it was written")
    }

    @Test
    fun `a bundle of a later release may say more`() {
        val path = copy("drafter-any").resolve(BUNDLE_FILE)
        edit(path) { it + ("remarks" to JsonPrimitive("é😀")) }
        OnnxDescription.read(path.parent)
    }

    @Test
    fun `names that lead out of the folder are refused`() {
        val odd = listOf("../outside", "/etc/passwd", "C:\\a", "\\a", "a\\..\\..\\b", "a/../../b", "", "\u0000", "..")
        for ((name, file) in listOf("target-4bit" to MANIFEST_FILE, "drafter-any" to BUNDLE_FILE)) {
            val path = copy(name).resolve(file)
            val content = path.readText()
            for (place in odd) {
                edit(path) { values ->
                    val files = values.getValue("files").jsonObject
                    values + ("files" to JsonObject(files + (place to files.values.first())))
                }
                refused(path.parent, "does not lie in it")
                path.writeText(content)
            }
        }
    }

    @Test
    fun `bundles for other devices are refused in words`() {
        val path = copy("drafter-any").resolve(BUNDLE_FILE)
        val soc = mapOf("name" to JsonPrimitive("SM8650"), "model_id" to JsonPrimitive(57), "htp_architecture" to JsonPrimitive("V75"))
        edit(path) { it + ("backend" to JsonPrimitive("executorch")) }
        refusedAs<OmniDraftException>(path.parent, "exported for the backend executorch", "--backend onnx")
        edit(path) { it + mapOf("backend" to JsonPrimitive("qnn"), "soc" to JsonObject(soc)) }
        val bundle = Bundle.load(path.parent)
        bundle.checkRuns("qnn", "arm64-v8a", "sm8650")
        bundle.checkRuns("qnn")
        val abi = assertThrows(OmniDraftException::class.java) { bundle.checkRuns("qnn", "x86_64", "SM8650") }
        assertTrue("this device's are x86_64" in abi.message!!, abi.message)
        val chip = assertThrows(OmniDraftException::class.java) { bundle.checkRuns("qnn", "arm64-v8a", "SM8550") }
        assertTrue("this device has SM8550. Export it again with --soc SM8550" in chip.message!!, chip.message)
        edit(path) { it + ("backend" to JsonPrimitive("tpu")) }
        refused(path.parent, "backend is 'tpu'")
    }

    @Test
    fun `bundles for other programs are refused in words`() {
        val path = copy("drafter-any").resolve(BUNDLE_FILE)
        edit(path) { it + ("layout" to JsonPrimitive("genai")) }
        refusedAs<OmniDraftException>(path.parent, "for other programs (--layout genai)", "without --layout")
        edit(path) { it + ("layout" to JsonPrimitive("omnidraft")) }
        OnnxDescription.read(path.parent)
    }

    @Test
    fun `JSON is written as Python writes it`() {
        val text = """{"b": 1, "a": ["é😀\u0001/\\\"\n", 1e-05, 1.0, -0.0, 123456789012345678901, true, null, NaN],""" +
            """ "ä": {}, "\ue000": 1, "😀": 2, "": []}"""
        val expected = """{"": [], "a": ["\u00e9\ud83d\ude00\u0001/\\\"\n", 1e-05, 1.0, -0.0, """ +
            """123456789012345678901, true, null, NaN], "b": 1, "\u00e4": {}, "\ue000": 1, "\ud83d\ude00": 2}"""
        assertEquals(expected, canonicalJson(Json.parseToJsonElement(text)))
    }
}
