package org.omnidraft.engine.text

import kotlin.io.path.readText
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.DynamicTest.dynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.omnidraft.engine.Fixtures
import org.omnidraft.engine.text.template.Template
import org.omnidraft.engine.text.template.TemplateException

class TemplateTest {
    @Serializable
    private class Recorded(val messages: List<Map<String, String>>, val templates: List<Each>)

    @Serializable
    private class Each(val template: String, val text: String?)

    private fun rendered(template: String, messages: List<Map<String, String>>): String? = try {
        Template(template, RecordedTexts.clock).render(mapOf("messages" to messages, "add_generation_prompt" to true))
    } catch (_: TemplateException) {
        null
    }

    @TestFactory
    fun `templates render what Jinja renders`(): List<DynamicTest> {
        val file = Fixtures.resources.resolve("text/templates.json")
        val recorded = Json.decodeFromString<Recorded>(file.readText())
        assertTrue(recorded.templates.size > 50)
        return recorded.templates.map { each ->
            dynamicTest(each.template.take(60)) {
                assertEquals(each.text, rendered(each.template, recorded.messages), each.template)
            }
        }
    }

    @Test
    fun `what is too long or too deep is refused`() {
        for (template in listOf("a".repeat(200_000), "{{ " + "[".repeat(20_000) + "]".repeat(20_000) + " }}", "{% for a in b %}".repeat(3000))) {
            assertThrows(TemplateException::class.java) { Template(template).render(emptyMap()) }
        }
    }

    @Test
    fun `a long conversation may be looked at often`() {
        val template = "{% set n = namespace(text='', last=-1) %}{% for m in messages %}" +
            "{% if loop.index0 == messages | length - 1 %}{% set n.last = loop.index0 %}{% endif %}" +
            "{% for later in messages[loop.index0 + 1:] if later.role == 'system' %}!{% endfor %}" +
            "{% set n.text = n.text + '<' + m['role'] + '>' + m['content'] | trim %}{% endfor %}{{ n.text }}{{ n.last }}"
        val messages = List(120) { mapOf("role" to "user", "content" to " ${"word ".repeat(200)}$it ") }
        val expected = (0 until 120).joinToString("") { "<user>${"word ".repeat(200)}$it" } + "119"
        assertEquals(expected, rendered(template, messages))
    }

    @Test
    fun `a long text may be rendered`() {
        val text = "word ".repeat(400_000)
        val template = "{% for m in messages %}{{ '<' ~ m.content.split('</x>')[-1] | trim ~ '>' }}{% endfor %}"
        assertEquals(text.length + 1, rendered(template, listOf(mapOf("role" to "user", "content" to text)))?.length)
    }
}
