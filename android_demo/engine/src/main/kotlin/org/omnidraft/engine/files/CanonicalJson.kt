package org.omnidraft.engine.files

import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive

private const val DEEPEST = 200
private val literal = Regex(
    "null|true|false|NaN|-?Infinity|-?(?:0|[1-9]\\d*)(?:\\.\\d+)?(?:[eE][+-]?\\d+)?"
)

/**
 * JSON as Python's `json.dumps(values, sort_keys=True)` writes it: keys by code point, `, ` and `: `
 * between, everything beyond ASCII escaped.
 *
 * Numbers are left as they were read, for they were written by Python: anything else in their place
 * is another text, and another digest.
 *
 * @throws SerializationException a value is none of JSON, which the parser lets pass.
 */
internal fun canonicalJson(value: JsonElement): String =
    StringBuilder().also { write(value, it, 0) }.toString()

private fun write(value: JsonElement, out: StringBuilder, depth: Int) {
    if (depth > DEEPEST) throw SerializationException("it is nested too deep")
    when (value) {
        is JsonObject -> {
            out.append('{')
            value.keys.sortedWith(byCodePoint).forEachIndexed { index, key ->
                if (index > 0) out.append(", ")
                writeText(key, out)
                out.append(": ")
                write(value.getValue(key), out, depth + 1)
            }
            out.append('}')
        }
        is JsonArray -> {
            out.append('[')
            value.forEachIndexed { index, each ->
                if (index > 0) out.append(", ")
                write(each, out, depth + 1)
            }
            out.append(']')
        }
        is JsonNull -> out.append("null")
        is JsonPrimitive -> when {
            value.isString -> writeText(value.content, out)
            literal.matches(value.content) -> out.append(value.content)
            else -> throw SerializationException("'${value.content.take(60)}' is no value of JSON")
        }
    }
}

private fun writeText(text: String, out: StringBuilder) {
    out.append('"')
    for (character in text) {
        when (character) {
            '"' -> out.append("\\\"")
            '\\' -> out.append("\\\\")
            '\n' -> out.append("\\n")
            '\r' -> out.append("\\r")
            '\t' -> out.append("\\t")
            '\b' -> out.append("\\b")
            '\u000c' -> out.append("\\f")
            in ' '..'~' -> out.append(character)
            else -> out.append("\\u").append(character.code.toString(16).padStart(4, '0'))
        }
    }
    out.append('"')
}

private val byCodePoint = Comparator<String> { left, right ->
    left.codePoints().toArray().let { a ->
        val b = right.codePoints().toArray()
        val difference = a.indices.firstOrNull { it >= b.size || a[it] != b[it] }
        when {
            difference == null -> a.size.compareTo(b.size)
            difference >= b.size -> 1
            else -> a[difference].compareTo(b[difference])
        }
    }
}
