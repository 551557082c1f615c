package org.omnidraft.engine.text

import java.nio.file.Files
import java.nio.file.Path
import kotlin.io.path.exists
import kotlin.io.path.name
import kotlin.io.path.nameWithoutExtension
import kotlin.io.path.readText
import kotlin.io.path.writeText
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.DynamicTest.dynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.junit.jupiter.api.io.TempDir
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.Fixtures
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.OmniDraftException

class TokenizerTest {
    @Serializable
    private class Family(val files: Map<String, String>, val recorded: RecordedTexts)

    @Test
    fun `the default drafter's tokenizer is Python's`() {
        val recorded = Fixtures.resources.resolve("text/drafter.json").readText()
        Tokenizer.load(Fixtures.root.resolve("drafter")).use { tokenizer ->
            Json.decodeFromString<RecordedTexts>(recorded).compare(tokenizer)
        }
    }

    @TestFactory
    fun `tokenizers and templates of families are Python's`(): List<DynamicTest> {
        val files = Files.list(Fixtures.resources.resolve("text/families")).use { it.sorted().toList() }
        assertTrue(files.size > 10)
        return files.map { file ->
            dynamicTest(file.nameWithoutExtension) {
                val family = Json.decodeFromString<Family>(file.readText())
                val contents = family.files.mapValues { it.value.encodeToByteArray() }
                Tokenizer.of(contents, RecordedTexts.clock).use(family.recorded::compare)
            }
        }
    }

    @TestFactory
    fun `real models' tokenizers are Python's`(): List<DynamicTest> {
        val recorded = Fixtures.folders(Fixtures.realModels())
            .associateWith { it.resolveSibling("${it.name}.text.json") }.filterValues { it.exists() }
        assertTrue(recorded.isNotEmpty()) { "nothing was recorded: see record_text.py" }
        return recorded.map { (folder, file) ->
            dynamicTest(folder.name) {
                Tokenizer.load(folder).use(Json.decodeFromString<RecordedTexts>(file.readText())::compare)
            }
        }
    }

    @Test
    fun `what is no tokenizer is refused`(@TempDir folder: Path) {
        assertThrows(ModelNotFoundException::class.java) { Tokenizer.load(folder) }
        for (content in listOf("", "{", "[]", "{}", "{\"model\": 1}", "{\"model\": {\"type\": \"BPE\"}}")) {
            folder.resolve("tokenizer.json").writeText(content)
            val error = assertThrows(DamagedFileException::class.java) { Tokenizer.load(folder) }
            assertTrue("Copy the model again" in error.message!!, error.message)
        }
        Files.copy(Fixtures.models.resolve("target-4bit/tokenizer.json"), folder.resolve("tokenizer.json"), java.nio.file.StandardCopyOption.REPLACE_EXISTING)
        Tokenizer.load(folder).close()
        for ((name, content) in listOf("tokenizer_config.json" to "{", "generation_config.json" to "[]")) {
            folder.resolve(name).writeText(content)
            val error = assertThrows(DamagedFileException::class.java) { Tokenizer.load(folder) }
            assertTrue(name in error.message!!, error.message)
            folder.resolve(name).writeText("{}")
        }
    }

    @Test
    fun `half a character is refused`() {
        Tokenizer.load(Fixtures.models.resolve("target-4bit")).use { tokenizer ->
            val error = assertThrows(OmniDraftException::class.java) { tokenizer.encode("ab\ud83d c") }
            assertTrue("position 2 (U+D83D" in error.message!!, error.message)
            assertThrows(OmniDraftException::class.java) { tokenizer.applyChat(listOf(Message("user", "a"))) }
            assertEquals(emptyList<Int>(), tokenizer.encode("").toList())
        }
    }
}
