package org.omnidraft.engine.text.template

import org.omnidraft.engine.text.isPythonSpace

/** The methods of texts, lists and dicts that templates may call: those that change nothing. */
internal class Methods(private val budget: Budget) {
    /** A method of a value, or null. */
    fun find(of: Any?, name: String): Callable? = when (of) {
        is String -> if (name in TEXT) Callable { given -> ofText(of, name, given) } else null
        is Map<*, *> -> if (name in DICT) Callable { given -> ofDict(of, name, given) } else null
        is List<*> -> if (name in LIST) Callable { given -> ofList(of, name, given) } else null
        else -> null
    }

    private fun ofDict(of: Map<*, *>, name: String, given: Given): Any? {
        budget.spend(1 + if (name == "get") 0 else of.size)
        return when (name) {
            "get" -> {
                val key = given[0, ""]
                text(key, budget)
                if (of.containsKey(key)) of[key] else given[1, ""]
            }
            "items" -> of.entries.map { PyTuple(listOf(it.key, it.value)) }
            "keys" -> of.keys.toList()
            "values" -> of.values.toList()
            else -> LinkedHashMap(of)
        }
    }

    private fun ofList(of: List<*>, name: String, given: Given): Any {
        val wanted = given[0, ""]
        if (name == "count") return of.count { same(it, wanted, budget) }.toLong()
        val place = of.indexOfFirst { same(it, wanted, budget) }
        if (place < 0) throw TemplateException("${text(listOf(wanted), budget)} is not in list")
        return place.toLong()
    }

    private fun ofText(of: String, name: String, given: Given): Any? {
        budget.text(of.length)
        fun text(index: Int, key: String = ""): String = given[index, key] as? String
            ?: throw TemplateException("$name() takes a text, not ${typeName(given[index, key])}")
        fun part() = text(0).also { budget.search(of, it) }
        fun stripped(value: Any?): (Char) -> Boolean =
            if (value == null) ::isPythonSpace else ({ it in (value as String) })
        return when (name) {
            "upper" -> of.uppercase()
            "lower", "casefold" -> of.lowercase()
            "title" -> titled(of)
            "capitalize" -> capitalized(of)
            "swapcase" -> of.map { if (it.isUpperCase()) it.lowercaseChar() else it.uppercaseChar() }.joinToString("")
            "strip" -> of.trim(stripped(given[0, ""]))
            "lstrip" -> of.trimStart(stripped(given[0, ""]))
            "rstrip" -> of.trimEnd(stripped(given[0, ""]))
            "startswith" -> any(given) { of.startsWith(it) }
            "endswith" -> any(given) { of.endsWith(it) }
            "removeprefix" -> of.removePrefix(text(0))
            "removesuffix" -> of.removeSuffix(text(0))
            "find" -> codePoints(of, of.indexOf(part()))
            "rfind" -> codePoints(of, of.lastIndexOf(part()))
            "index" -> found(codePoints(of, of.indexOf(part())))
            "rindex" -> found(codePoints(of, of.lastIndexOf(part())))
            "count" -> occurrences(of, part()).toLong()
            "replace" -> {
                val most = given[2, "count"] as? Long ?: -1
                replaced(of, text(0, "old"), text(1, "new"), most.toInt(), budget)
            }
            "split" -> split(of, given[0, "sep"], given[1, "maxsplit"])
            "rsplit" -> rsplit(of, given[0, "sep"], given[1, "maxsplit"])
            "splitlines" -> lines(of).also { budget.spend(it.size) }
            "partition" -> part().let { at ->
                if (at !in of) PyTuple(listOf(of, "", ""))
                else PyTuple(listOf(of.substringBefore(at), at, of.substringAfter(at)))
            }
            "rpartition" -> part().let { at ->
                if (at !in of) PyTuple(listOf("", "", of))
                else PyTuple(listOf(of.substringBeforeLast(at), at, of.substringAfterLast(at)))
            }
            "join" -> joined(iterate(given[0, ""], budget), of)
            "format" -> fields(of, given)
            "zfill" -> Budget.width(given[0, "width"]).let { width ->
                val sign = of.take(1).takeIf { it == "-" || it == "+" }.orEmpty()
                sign + of.drop(sign.length).padStart(width - sign.length, '0')
            }
            "ljust" -> of.padEnd(Budget.width(given[0, "width"]))
            "rjust" -> of.padStart(Budget.width(given[0, "width"]))
            "center" -> centered(of, Budget.width(given[0, "width"]))
            "isspace" -> of.isNotEmpty() && of.all(::isPythonSpace)
            "isdigit", "isdecimal", "isnumeric" -> of.isNotEmpty() && of.all(Char::isDigit)
            "isalpha" -> of.isNotEmpty() && of.all(Char::isLetter)
            "isalnum" -> of.isNotEmpty() && of.all(Char::isLetterOrDigit)
            "islower" -> of == of.lowercase() && of != of.uppercase()
            else -> of == of.uppercase() && of != of.lowercase() // isupper
        }
    }

    private fun any(given: Given, test: (String) -> Boolean): Boolean = when (val wanted = given[0, ""]) {
        is String -> test(wanted)
        is PyTuple -> wanted.any { it is String && test(it) }
        is Undefined -> wanted.fail()
        else -> throw TemplateException("a text or a tuple of texts is expected, not ${typeName(wanted)}")
    }

    private fun found(place: Long): Long =
        if (place >= 0) place else throw TemplateException("substring not found")

    private fun codePoints(of: String, place: Int): Long =
        if (place < 0) -1 else of.codePointCount(0, place).toLong()

    private fun split(of: String, separator: Any?, most: Any?): List<String> {
        val wanted = (most as? Long)?.takeIf { it >= 0 } ?: Long.MAX_VALUE
        val limit = wanted.coerceAtMost(Int.MAX_VALUE - 1L).toInt()
        if (separator != null) {
            val at = separator as? String ?: throw TemplateException("must be str or None, not ${typeName(separator)}")
            if (at.isEmpty()) throw TemplateException("empty separator")
            budget.spend(occurrences(of, at))
            return of.split(at, limit = limit + 1)
        }
        val found = ArrayList<String>()
        var rest = of.trimStart(::isPythonSpace)
        while (rest.isNotEmpty() && found.size < limit) {
            budget.text(rest.length)
            val word = rest.takeWhile { !isPythonSpace(it) }
            found += word
            rest = rest.substring(word.length).trimStart(::isPythonSpace)
        }
        if (rest.isNotEmpty()) found += rest
        return found
    }

    private fun rsplit(of: String, separator: Any?, most: Any?): List<String> {
        if (separator == null) throw TemplateException("rsplit() needs a text to split at")
        val all = split(of, separator, null)
        val limit = (most as? Long)?.takeIf { it in 0 until all.size - 1L }?.toInt() ?: return all
        val head = all.dropLast(limit).joinToString(separator as String)
        return listOf(head) + all.takeLast(limit)
    }

    private fun joined(parts: List<Any?>, between: String): String {
        val texts = parts.mapIndexed { i, part ->
            part as? String
                ?: throw TemplateException("sequence item $i: expected str instance, ${typeName(part)} found")
        }
        budget.text(texts.sumOf { it.length.toLong() + between.length })
        return texts.joinToString(between)
    }

    /** `str.format`, with fields that have no form of their own. */
    private fun fields(of: String, given: Given): String {
        val out = StringBuilder()
        var at = 0
        var next = 0
        while (at < of.length) {
            val character = of[at++]
            val doubled = at < of.length && of[at] == character
            if (character != '{' && character != '}' || doubled) {
                out.append(character)
                if (doubled && (character == '{' || character == '}')) at++
                continue
            }
            val end = of.indexOf('}', at)
            if (character == '}' || end < 0) throw TemplateException("a brace stands alone in a format")
            val name = of.substring(at, end)
            at = end + 1
            val place = if (name.isEmpty()) next++ else name.toIntOrNull()
            val value = when {
                place != null && place in given.positional.indices -> given.positional[place]
                name in given.named -> given.named[name]
                else -> throw TemplateException("it formats a field '${name.take(60)}' that is not given")
            }
            out.append(text(value, budget).also { budget.text(it.length) })
        }
        return out.toString()
    }

    private companion object {
        val TEXT = (
            "upper lower casefold title capitalize swapcase strip lstrip rstrip startswith endswith removeprefix " +
                "removesuffix find rfind index rindex count replace split rsplit splitlines partition rpartition join " +
                "format zfill ljust rjust center isspace isdigit isdecimal isnumeric isalpha isalnum islower isupper"
            ).split(' ').toSet()
        val DICT = setOf("get", "items", "keys", "values", "copy")
        val LIST = setOf("count", "index")
    }
}

internal fun capitalized(text: String): String =
    text.take(1).uppercase() + text.drop(1).lowercase()

/** A capital behind whatever is no letter. */
internal fun titled(text: String): String = buildString {
    var within = false
    for (character in text) {
        append(if (within) character.lowercaseChar() else character.titlecaseChar())
        within = character.isLetter()
    }
}

internal fun centered(text: String, width: Int): String {
    val missing = maxOf(0, width - text.length)
    val left = missing / 2 + (missing and width and 1)
    return " ".repeat(left) + text + " ".repeat(missing - left)
}

internal fun occurrences(text: String, part: String): Int {
    if (part.isEmpty()) return text.length + 1
    var count = 0
    var at = text.indexOf(part)
    while (at >= 0) {
        count++
        at = text.indexOf(part, at + part.length)
    }
    return count
}

internal fun replaced(text: String, old: String, new: String, most: Int, budget: Budget): String {
    budget.search(text, old)
    val count = occurrences(text, old)
    budget.text(count.toLong() * new.length)
    if (most < 0 || most >= count) return text.replace(old, new)
    val out = StringBuilder()
    var at = 0
    repeat(most) {
        val found = text.indexOf(old, at)
        out.append(text, at, found).append(new)
        at = found + old.length
        if (old.isEmpty() && at < text.length) out.append(text[at++])
    }
    return out.append(text, at, text.length).toString()
}

private val lineEnd = Regex("\r\n|[\n\r\u000b\u000c\u001c-\u001e\u0085\u2028\u2029]")

/** Python's `splitlines()`. */
internal fun lines(text: String): List<String> {
    val lines = text.split(lineEnd)
    return if (lines.last().isEmpty()) lines.dropLast(1) else lines
}
