package org.omnidraft.engine.text

import java.time.Clock
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.text.template.Template
import org.omnidraft.engine.text.template.TemplateException

/**
 * A model's chat template, rendered the way Hugging Face models expect, in bounded time and memory.
 *
 * @param text the template's Jinja.
 * @param specialTokens the values of `bos_token`, `eos_token`, …
 * @param clock tells templates that ask what day it is.
 */
internal class ChatTemplate(
    private val text: String,
    private val specialTokens: Map<String, String>,
    private val clock: Clock,
) {
    private val template by lazy { Template(text, clock) }

    /**
     * The text of a conversation.
     *
     * @param opens end with the opening of the assistant's turn.
     * @throws OmniDraftException the template is broken, refuses these messages, or computes too much.
     */
    fun render(messages: List<Message>, opens: Boolean): String = try {
        rendered(messages, opens, specialTokens)
    } catch (error: TemplateException) {
        throw OmniDraftException(
            "The model's chat template cannot render this conversation: ${error.message?.take(300)}. " +
                "Use the raw prompt instead.",
            error,
        )
    }

    private fun rendered(
        messages: List<Message>,
        opens: Boolean,
        names: Map<String, String>,
        parts: Boolean = takesParts,
    ): String {
        val turns = messages.map { each ->
            val content: Any = if (parts) listOf(mapOf("type" to "text", "text" to each.content)) else each.content
            mapOf("role" to each.role, "content" to content)
        }
        // Templates ask whether tools are none, which what is undefined is not.
        val given = mapOf(
            "messages" to turns, "add_generation_prompt" to opens, "tools" to null, "documents" to null,
        )
        return template.render(given + names)
    }

    /**
     * Whether it shows what a message says only where that is a list of parts, as templates of some
     * models that see do. Of a text they would show nothing, and say nothing.
     */
    private val takesParts: Boolean by lazy {
        fun shows(parts: Boolean) = try {
            PROBE in rendered(listOf(Message("user", PROBE)), true, emptyMap(), parts)
        } catch (_: TemplateException) {
            false
        }
        "text" in text && !shows(parts = false) && shows(parts = true)
    }

    /** Whether it shows what a message of a role says. */
    fun takesRole(role: String): Boolean {
        val asked = Message("user", "?")
        val said = Message(role, PROBE)
        return listOf(listOf(said), listOf(asked, said), listOf(said, asked)).any { turns ->
            try {
                PROBE in render(turns, true)
            } catch (_: OmniDraftException) {
                false
            }
        }
    }

    /**
     * A text that holds the name of every marker the template uses: its own, and what it renders, as
     * some put names together: `'<|' + message['role'] + '|>'`.
     */
    fun words(): String {
        val turns = listOf("system", "user", "assistant").map { Message(it, "") }
        val renderings = listOf(turns, turns.drop(1)).mapNotNull { messages ->
            try {
                render(messages, true)
            } catch (_: OmniDraftException) {
                null
            }
        }
        return (listOf(text) + renderings).joinToString("\n")
    }

    private companion object {
        const val PROBE = "omnidraft"
    }
}
