package org.omnidraft.engine.text.template

/** Python's `json.dumps(value)`. */
internal class JsonWriter(
    private val budget: Budget,
    private val indent: Int?,
    between: Pair<String, String>?,
    private val sorted: Boolean,
    private val ascii: Boolean,
) {
    private val comma = between?.first ?: if (indent == null) ", " else ","
    private val colon = between?.second ?: ": "
    private val out = StringBuilder()

    fun write(value: Any?): String = out.also { write(value, 0) }.toString()

    private fun write(value: Any?, depth: Int) {
        budget.spend(1)
        if (depth > 100) throw TemplateException("a value is nested too deep for JSON")
        when (value) {
            null -> out.append("null")
            is Boolean -> out.append(value)
            is Long -> out.append(value)
            is Double -> out.append(floatText(value))
            is String -> string(value)
            is List<*> -> all(value, '[', ']', depth) { write(it, depth + 1) }
            is Map<*, *> -> {
                val entries = if (sorted) value.entries.sortedBy { text(it.key, budget) } else value.entries.toList()
                all(entries, '{', '}', depth) { (key, item) ->
                    string(if (key is String) key else JsonWriter(budget, null, null, false, ascii).write(key))
                    out.append(colon)
                    write(item, depth + 1)
                }
            }
            else -> throw TemplateException("${typeName(value)} is not JSON serializable")
        }
    }

    private fun <T> all(items: List<T>, open: Char, close: Char, depth: Int, each: (T) -> Unit) {
        out.append(open)
        items.forEachIndexed { i, item ->
            if (i > 0) out.append(comma)
            line(depth + 1)
            each(item)
        }
        if (items.isNotEmpty()) line(depth)
        out.append(close)
    }

    private fun line(depth: Int) {
        if (indent == null) return
        budget.text(indent * depth)
        out.append('\n').append(" ".repeat(indent * depth))
    }

    private fun string(text: String) {
        budget.text(text.length)
        out.append('"')
        for (character in text) when (character) {
            '"' -> out.append("\\\"")
            '\\' -> out.append("\\\\")
            '\n' -> out.append("\\n")
            '\r' -> out.append("\\r")
            '\t' -> out.append("\\t")
            '\b' -> out.append("\\b")
            '\u000c' -> out.append("\\f")
            in ' '..'~', '\u007f' -> out.append(character)
            else -> {
                if (ascii || character < ' ') out.append("\\u").append(hex(character.code, 4)) else out.append(character)
            }
        }
        out.append('"')
    }
}
