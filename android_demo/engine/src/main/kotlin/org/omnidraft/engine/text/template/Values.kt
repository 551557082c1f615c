package org.omnidraft.engine.text.template

import java.math.BigDecimal

/** What a name, attribute or item is that does not exist: empty, but of no use beyond that. */
internal class Undefined(val name: String) {
    fun fail(): Nothing = throw TemplateException("'$name' is undefined")
}

/** Values that are held together and do not change. */
internal class PyTuple(private val items: List<Any?>) : AbstractList<Any?>() {
    override val size get() = items.size
    override fun get(index: Int) = items[index]
}

/** `namespace(…)`: attributes that may be assigned from within loops. */
internal class Namespace(val values: MutableMap<String, Any?>)

/** Something that can be called. */
internal class Callable(val call: (Given) -> Any?)

/** What a call is given. */
internal class Given(val positional: List<Any?>, val named: Map<String, Any?> = emptyMap()) {
    val size get() = positional.size + named.size

    fun has(index: Int, name: String) = index < positional.size || name in named

    /** An argument by its place or its name. */
    operator fun get(index: Int, name: String, default: Any? = null): Any? = when {
        index < positional.size -> positional[index]
        name in named -> named[name]
        else -> default
    }
}

internal fun truth(value: Any?): Boolean = when (value) {
    null, is Undefined -> false
    is Boolean -> value
    is Long -> value != 0L
    is Double -> value != 0.0
    is String -> value.isNotEmpty()
    is Collection<*> -> value.isNotEmpty()
    is Map<*, *> -> value.isNotEmpty()
    else -> true
}

/** A number, as which a truth value counts too; null if it is none. */
internal fun number(value: Any?): Number? = when (value) {
    is Boolean -> if (value) 1L else 0L
    is Long, is Double -> value as Number
    else -> null
}

internal fun typeName(value: Any?): String = when (value) {
    null -> "NoneType"
    is Boolean -> "bool"
    is Long -> "int"
    is Double -> "float"
    is String -> "str"
    is PyTuple -> "tuple"
    is List<*> -> "list"
    is Map<*, *> -> "dict"
    is Undefined -> "Undefined"
    is Namespace -> "Namespace"
    else -> "object"
}

/** Python's `==`. */
internal fun same(left: Any?, right: Any?, budget: Budget): Boolean {
    budget.spend(1)
    val a = number(left)
    val b = number(right)
    return when {
        a != null && b != null -> if (a is Long && b is Long) a == b else a.toDouble() == b.toDouble()
        left is String && right is String -> {
            budget.text(minOf(left.length, right.length))
            left == right
        }
        left is List<*> && right is List<*> ->
            (left is PyTuple) == (right is PyTuple) && left.size == right.size &&
                left.indices.all { same(left[it], right[it], budget) }
        left is Map<*, *> && right is Map<*, *> -> left.size == right.size &&
            left.all { (key, value) -> right.containsKey(key) && same(value, right[key], budget) }
        left is Undefined -> right is Undefined
        else -> left === right
    }
}

/** Python's ordering of numbers, texts and lists. */
internal fun compare(left: Any?, right: Any?, budget: Budget): Int {
    budget.spend(1)
    val a = number(left)
    val b = number(right)
    return when {
        a != null && b != null -> if (a is Long && b is Long) a.compareTo(b) else a.toDouble().compareTo(b.toDouble())
        left is String && right is String -> budget.text(minOf(left.length, right.length)).let { left.compareTo(right) }
        left is List<*> && right is List<*> -> {
            val place = (0 until minOf(left.size, right.size)).firstOrNull { !same(left[it], right[it], budget) }
            if (place == null) left.size.compareTo(right.size) else compare(left[place], right[place], budget)
        }
        left is Undefined -> left.fail()
        right is Undefined -> right.fail()
        else -> throw TemplateException("'<' is not supported between '${typeName(left)}' and '${typeName(right)}'")
    }
}

/** Python's `in`. */
internal fun contains(container: Any?, value: Any?, budget: Budget): Boolean = when (container) {
    is String -> {
        if (value is Undefined) value.fail()
        val part = value as? String ?: throw TemplateException("'in <string>' requires a text, not ${typeName(value)}")
        budget.search(container, part)
        part in container
    }
    is Map<*, *> -> container.containsKey(value).also { budget.spend(1) }
    is Undefined -> false
    is Collection<*> -> container.any { same(it, value, budget) }
    else -> throw TemplateException("argument of type '${typeName(container)}' is not iterable")
}

/** What a loop goes over. */
internal fun iterate(value: Any?, budget: Budget): List<Any?> = when (value) {
    is List<*> -> value
    is Collection<*> -> value.toList()
    is Map<*, *> -> value.keys.toList().also { budget.spend(it.size) }
    is String -> characters(value).also { budget.spend(it.size) }
    is Undefined -> emptyList()
    else -> throw TemplateException("'${typeName(value)}' is not iterable")
}

internal fun characters(text: String): List<String> = ArrayList<String>(text.length).also { found ->
    var at = 0
    while (at < text.length) {
        val count = Character.charCount(text.codePointAt(at))
        found += text.substring(at, at + count)
        at += count
    }
}

/** Python's `str()`. */
internal fun text(value: Any?, budget: Budget): String = when (value) {
    is String -> value
    is Undefined -> ""
    else -> StringBuilder().also { represent(value, it, budget, 0) }.toString()
}

/** Python's `repr()`. */
private fun represent(value: Any?, out: StringBuilder, budget: Budget, depth: Int) {
    budget.spend(1)
    if (depth > 100) throw TemplateException("a value is nested too deep")
    fun all(items: Collection<*>, open: String, close: String) {
        out.append(open)
        items.forEachIndexed { i, item ->
            if (i > 0) out.append(", ")
            represent(item, out, budget, depth + 1)
        }
        out.append(close)
    }
    when (value) {
        null -> out.append("None")
        is Boolean -> out.append(if (value) "True" else "False")
        is Long -> out.append(value)
        is Double -> out.append(floatText(value))
        is String -> {
            budget.text(value.length)
            quote(value, out)
        }
        is Undefined -> out.append("Undefined")
        is PyTuple -> all(value, "(", if (value.size == 1) ",)" else ")")
        is Collection<*> -> all(value, "[", "]")
        is Map<*, *> -> {
            out.append('{')
            value.entries.forEachIndexed { i, (key, item) ->
                if (i > 0) out.append(", ")
                represent(key, out, budget, depth + 1)
                out.append(": ")
                represent(item, out, budget, depth + 1)
            }
            out.append('}')
        }
        is Namespace -> out.append("<Namespace>")
        else -> out.append("<object>")
    }
}

private fun quote(text: String, out: StringBuilder) {
    val mark = if ('\'' in text && '"' !in text) '"' else '\''
    out.append(mark)
    var at = 0
    while (at < text.length) {
        val point = text.codePointAt(at)
        at += Character.charCount(point)
        when {
            point == mark.code || point == '\\'.code -> out.append('\\').append(point.toChar())
            point == '\n'.code -> out.append("\\n")
            point == '\r'.code -> out.append("\\r")
            point == '\t'.code -> out.append("\\t")
            printable(point) -> out.appendCodePoint(point)
            point < 0x100 -> out.append("\\x").append(hex(point, 2))
            point < 0x10000 -> out.append("\\u").append(hex(point, 4))
            else -> out.append("\\U").append(hex(point, 8))
        }
    }
    out.append(mark)
}

internal fun hex(point: Int, digits: Int) = point.toString(16).padStart(digits, '0')

private fun printable(point: Int): Boolean = point == ' '.code || when (Character.getType(point).toByte()) {
    Character.CONTROL, Character.FORMAT, Character.SURROGATE, Character.PRIVATE_USE, Character.UNASSIGNED,
    Character.LINE_SEPARATOR, Character.PARAGRAPH_SEPARATOR, Character.SPACE_SEPARATOR,
    -> false
    else -> true
}

/** Python's `repr()` of a float. */
internal fun floatText(value: Double): String {
    if (value.isNaN()) return "nan"
    if (value.isInfinite()) return if (value > 0) "inf" else "-inf"
    if (value == 0.0) return if (1 / value < 0) "-0.0" else "0.0"
    val number = BigDecimal(value.toString()).stripTrailingZeros()
    val exponent = number.precision() - number.scale() - 1
    if (exponent in -4..15) return number.toPlainString().let { if ('.' in it) it else "$it.0" }
    val digits = number.unscaledValue().abs().toString()
    val mantissa = digits.take(1) + if (digits.length > 1) "." + digits.drop(1) else ""
    val power = (if (exponent < 0) "-" else "+") + kotlin.math.abs(exponent).toString().padStart(2, '0')
    return (if (value < 0) "-" else "") + mantissa + "e" + power
}
