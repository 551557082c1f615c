package org.omnidraft.engine.text.template

import org.omnidraft.engine.text.isPythonSpace

/** A template is broken, refuses what it is given, or computes too much. */
internal class TemplateException(message: String, cause: Throwable? = null) : Exception(message, cause)

internal enum class Kind {
    DATA, BLOCK_BEGIN, BLOCK_END, VARIABLE_BEGIN, VARIABLE_END, NAME, STRING, INTEGER, FLOAT, OPERATOR, END,
}

/** @property text of strings and data what they say; of others as the template spells them. */
internal class Token(val kind: Kind, val text: String, val line: Int) {
    override fun toString() = if (kind == Kind.END) "end of template" else "'$text'"
}

/**
 * Cuts a template into tokens as Jinja does with `trim_blocks` and `lstrip_blocks`: the newline
 * behind a block goes, and the white space before one that begins a line.
 */
internal class Lexer(source: String) {
    private val text = source.replace("\r\n", "\n").replace('\r', '\n').removeSuffix("\n")
    private val tokens = ArrayList<Token>()
    private var at = 0
    private var line = 1
    private var lineBegins = true // nothing but what was cut away stands before on this line

    fun tokens(): List<Token> {
        while (at < text.length) {
            val begin = opening(at)
            if (begin < 0) {
                data(text.substring(at))
                at = text.length
                break
            }
            val sign = text.getOrNull(begin + 2)?.takeIf { it == '-' || it == '+' }
            val kind = text[begin + 1]
            data(stripped(text.substring(at, begin), kind, sign))
            move(begin + 2 + if (sign != null) 1 else 0)
            when (kind) {
                '#' -> comment()
                '{' -> expression(Kind.VARIABLE_BEGIN, Kind.VARIABLE_END, "}}")
                else -> if (!raw()) expression(Kind.BLOCK_BEGIN, Kind.BLOCK_END, "%}")
            }
        }
        tokens += Token(Kind.END, "", line)
        return tokens
    }

    private fun opening(from: Int): Int {
        var found = text.indexOf('{', from)
        while (found >= 0 && text.getOrNull(found + 1).let { it != '%' && it != '{' && it != '#' }) {
            found = text.indexOf('{', found + 1)
        }
        return found
    }

    private fun stripped(data: String, kind: Char, sign: Char?): String {
        if (sign == '-') return data.trimEnd(::isPythonSpace)
        if (sign == '+' || kind == '{') return data
        val start = data.lastIndexOf('\n') + 1
        val blank = (start > 0 || lineBegins) && data.substring(start).all(::isPythonSpace)
        return if (blank) data.substring(0, start) else data
    }

    private fun data(data: String) {
        if (data.isNotEmpty()) tokens += Token(Kind.DATA, data, line)
    }

    /** Go on at a place. */
    private fun move(to: Int) {
        for (i in at until to) if (text[i] == '\n') line++
        if (to > at) lineBegins = text[to - 1] == '\n'
        at = to
    }

    private fun comment() {
        val end = text.indexOf("#}", at)
        if (end < 0) fail("a comment does not end")
        val sign = text[end - 1].takeIf { end > at }
        move(end + 2)
        behind(sign, trims = true)
    }

    /** What goes behind a tag that ended. */
    private fun behind(sign: Char?, trims: Boolean) {
        if (sign == '-') {
            var to = at
            while (to < text.length && isPythonSpace(text[to])) to++
            move(to)
        } else if (sign != '+' && trims && text.getOrNull(at) == '\n') {
            move(at + 1)
        }
    }

    private fun raw(): Boolean {
        val opened = RAW.matchAt(text, at) ?: return false
        val ended = END_RAW.find(text, opened.range.last + 1) ?: fail("raw does not end")
        move(opened.range.last + 1)
        if (opened.groupValues[1] == "-") behind('-', trims = false)
        var content = text.substring(minOf(at, ended.range.first), ended.range.first)
        content = when (ended.groupValues[1]) {
            "-" -> content.trimEnd(::isPythonSpace)
            "+" -> content
            else -> stripped(content, '%', null)
        }
        data(content)
        move(ended.range.last + 1)
        behind(ended.groupValues[2].firstOrNull(), trims = true)
        return true
    }

    private fun expression(begin: Kind, end: Kind, closing: String) {
        tokens += Token(begin, "{" + if (begin == Kind.BLOCK_BEGIN) "%" else "{", line)
        var depth = 0
        while (true) {
            while (at < text.length && isPythonSpace(text[at])) move(at + 1)
            if (at >= text.length) fail("a tag does not end")
            val sign = text[at].takeIf { it == '-' || (it == '+' && end == Kind.BLOCK_END) }
            if (depth == 0 && text.startsWith(closing, at + if (sign != null) 1 else 0)) {
                tokens += Token(end, closing, line)
                move(at + 2 + if (sign != null) 1 else 0)
                behind(sign, trims = end == Kind.BLOCK_END)
                return
            }
            val token = next()
            if (token.kind == Kind.OPERATOR) {
                if (token.text in "([{") depth++
                if (token.text in ")]}" && --depth < 0) fail("unexpected '${token.text}'")
            }
            tokens += token
        }
    }

    private fun next(): Token {
        val character = text[at]
        if (character == '"' || character == '\'') return string(character)
        for ((kind, form) in FORMS) {
            val found = form.matchAt(text, at)?.value ?: continue
            return Token(kind, found, line).also { move(at + found.length) }
        }
        val operator = OPERATORS.firstOrNull { text.startsWith(it, at) }
            ?: fail("unexpected character '$character'")
        return Token(Kind.OPERATOR, operator, line).also { move(at + operator.length) }
    }

    private fun string(quote: Char): Token {
        val start = line
        val out = StringBuilder()
        var i = at + 1
        while (true) {
            if (i >= text.length) fail("a string does not end")
            val character = text[i]
            if (character == quote) break
            if (character != '\\' || i + 1 >= text.length) {
                out.append(character)
                i++
            } else {
                i = escape(i + 1, out)
            }
        }
        move(i + 1)
        return Token(Kind.STRING, out.toString(), start)
    }

    /** Decode what stands behind a backslash; returns the place behind it. */
    private fun escape(from: Int, out: StringBuilder): Int {
        val character = text[from]
        SIMPLE[character]?.let {
            out.append(it)
            return from + 1
        }
        val digits = when (character) { 'x' -> 2; 'u' -> 4; 'U' -> 8; else -> 0 }
        if (digits > 0) {
            val code = text.substring(from + 1, minOf(text.length, from + 1 + digits))
            val point = code.takeIf { it.length == digits }?.toIntOrNull(16)
            if (point == null || !Character.isValidCodePoint(point)) fail("a broken escape in a string")
            out.appendCodePoint(point)
            return from + 1 + digits
        }
        if (character in '0'..'7') {
            val octal = text.substring(from, minOf(text.length, from + 3)).takeWhile { it in '0'..'7' }
            out.append(octal.toInt(8).toChar())
            return from + octal.length
        }
        if (character != '\n') out.append('\\').append(character)
        return from + 1
    }

    private fun fail(what: String): Nothing = throw TemplateException("$what (line $line)")

    private companion object {
        val RAW = Regex("\\s*raw\\s*(-|\\+)?%\\}")
        val END_RAW = Regex("\\{%(-|\\+)?\\s*endraw\\s*(-|\\+)?%\\}")
        val FORMS = listOf(
            Kind.FLOAT to Regex("(?:\\d+_)*\\d+(?:\\.(?:\\d+_)*\\d+(?:[eE][+-]?\\d+)?|[eE][+-]?\\d+)"),
            Kind.INTEGER to Regex("0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO][0-7]+|(?:\\d+_)*\\d+"),
            Kind.NAME to Regex("[\\p{L}_][\\p{L}\\p{N}\\p{M}_]*"),
        )
        val OPERATORS = listOf(
            "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{",
            "}", ">", "<", "=", ".", ":", "|", ",", ";",
        )
        val SIMPLE = mapOf(
            'n' to '\n', 't' to '\t', 'r' to '\r', '\\' to '\\', '\'' to '\'', '"' to '"',
            'a' to '\u0007', 'b' to '\b', 'f' to '\u000c', 'v' to '\u000b',
        )
    }
}
