package org.omnidraft.engine.text

/** One turn of a conversation: [role] is "system", "user", "assistant" or one a template knows. */
data class Message(val role: String, val content: String)

/** Tokens that end a turn or a text, whatever a model's configuration forgets to say. */
internal val END_TOKENS = setOf(
    "</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|EOT|>", "<|endoftext|>",
    "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>",
    "<end_of_turn>", "<turn|>", "<|end_of_turn|>", "<|endofturn|>", "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)

internal fun looksLikeMarker(content: String): Boolean = content.length > 2 &&
    (content.first() == '<' && content.last() == '>' || content.first() == '[' && content.last() == ']')

/**
 * A token that a name in a rendered conversation stands for.
 *
 * @property lstrip whether it swallows the white space before it.
 * @property rstrip whether it swallows the white space behind it.
 * @property spoken it is a part of what the model answers, such as `<think>`, and readers see it.
 */
internal data class Marker(
    val index: Int,
    val name: String,
    val lstrip: Boolean,
    val rstrip: Boolean,
    val spoken: Boolean,
)

/**
 * A part of a rendered conversation.
 *
 * @property marker the marker before it; null at the beginning.
 * @property text what stands between that marker and the next, without what they swallow.
 * @property typed [text] holds names of markers, which a message brought in.
 */
internal class Segment(val marker: Marker?, val text: String, val typed: Boolean)

/**
 * Render a conversation and cut it at the template's markers.
 *
 * A character that nobody uses is put into the names that stand in messages, so that those which are
 * found in the rendered text are the template's. What an answer of the model says of its thoughts and
 * calls was markers, and is left alone.
 *
 * @param markers by name.
 * @return null if no message holds such a name, so that every one in the text is the template's.
 */
internal fun segments(
    messages: List<Message>,
    markers: Map<String, Marker>,
    render: (List<Message>) -> String,
): List<Segment>? {
    val typed = messages.joinToString("") { it.content }
    val present = markers.keys.filter { it in typed }.toSet()
    if (present.isEmpty()) return null
    val seam = unusedCharacter(typed)
    val unspoken = present.filter { !markers.getValue(it).spoken }.toSet()
    val sealed = messages.map { each ->
        val names = if (each.role == "assistant") unspoken else present
        if (names.isEmpty()) each
        else each.copy(content = any(names).replace(each.content) { cut(it.value, seam) })
    }
    // A template may have written it as JSON.
    val escaped = "\\u" + seam.code.toString(16).padStart(4, '0')
    val text = render(sealed).replace(escaped, seam.toString())
    val found = any(markers.keys).findAll(text).toList()
    val made = ArrayList<Segment>()
    for (i in 0..found.size) {
        val start = if (i == 0) 0 else found[i - 1].range.last + 1
        val piece = text.substring(start, if (i == found.size) text.length else found[i].range.first)
        val before = if (i == 0) null else markers.getValue(found[i - 1].value)
        val behind = if (i == found.size) null else markers.getValue(found[i].value)
        var clean = piece.replace(seam.toString(), "")
        if (before?.rstrip == true) clean = clean.trimStart(::isPythonSpace)
        if (behind?.lstrip == true) clean = clean.trimEnd(::isPythonSpace)
        made += Segment(before, clean, seam in piece)
    }
    return made
}

/** One of Unicode's private characters that a text does not hold. */
internal fun unusedCharacter(text: String): Char = ('\uE000'..'\uF8FE').first { it !in text }

private fun cut(name: String, seam: Char): String {
    val first = Character.charCount(name.codePointAt(0))
    return name.substring(0, first) + seam + name.substring(first)
}

private fun any(names: Collection<String>) =
    Regex(names.sortedByDescending { it.codePointCount(0, it.length) }.joinToString("|", transform = Regex::escape))

/** What Python's `str.strip()` takes away. */
internal fun isPythonSpace(character: Char): Boolean = when (character) {
    in '\t'..'\r', in '\u001c'..' ', '\u0085', '\u00a0', '\u1680', in '\u2000'..'\u200a', '\u2028',
    '\u2029', '\u202f', '\u205f', '\u3000',
    -> true
    else -> false
}
