package org.omnidraft.engine.text

import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement

/**
 * The members of an object in a JSON text, each as its text.
 *
 * A tokenizer's file is mostly a large vocabulary. Only what is needed of it is parsed, and another
 * file is made of it by exchanging some members.
 *
 * @param text valid JSON.
 * @throws SerializationException it does not begin with an object.
 */
internal class JsonSpans(private val text: String) {
    private val spans = LinkedHashMap<String, IntRange>()

    init {
        var at = skipSpace(0)
        if (text.getOrNull(at) != '{') throw SerializationException("it holds no object")
        at = skipSpace(at + 1)
        while (text[at] != '}') {
            val name = at
            at = skipValue(at)
            val key = Json.decodeFromString<String>(text.substring(name, at))
            at = skipSpace(skipSpace(at) + 1) // the colon
            val value = at
            at = skipValue(at)
            spans[key] = value until at
            at = skipSpace(at)
            if (text[at] == ',') at = skipSpace(at + 1)
        }
    }

    /** The text of a member's value, or null. */
    operator fun get(name: String): String? = spans[name]?.let(text::substring)

    /** A member's value, or null. */
    fun element(name: String): JsonElement? = get(name)?.let(Json::parseToJsonElement)

    /** The object with other values for some members. */
    fun with(values: Map<String, JsonElement>): String = buildString {
        append('{')
        for ((name, span) in spans) if (name !in values) append("${quoted(name)}:", text, span)
        for ((name, value) in values) append("${quoted(name)}:").append(value).append(',')
        if (last() == ',') setLength(length - 1)
        append('}')
    }

    private fun StringBuilder.append(name: String, text: String, span: IntRange) {
        append(name).append(text, span.first, span.last + 1).append(',')
    }

    private fun quoted(name: String) = Json.encodeToString(name)

    private fun skipSpace(from: Int): Int {
        var at = from
        while (at < text.length && text[at] in " \t\r\n") at++
        return at
    }

    /** Behind the value that begins at a place. */
    private fun skipValue(from: Int): Int {
        var at = from
        var depth = 0
        do {
            when (text[at]) {
                '"' -> at = skipString(at)
                '{', '[' -> { depth++; at++ }
                '}', ']' -> { depth--; at++ }
                else -> {
                    if (depth > 0) at++
                    else while (at < text.length && text[at] !in ",}] \t\r\n") at++
                }
            }
        } while (depth > 0)
        return at
    }

    private fun skipString(from: Int): Int {
        var at = from + 1
        while (text[at] != '"') at += if (text[at] == '\\') 2 else 1
        return at + 1
    }
}
