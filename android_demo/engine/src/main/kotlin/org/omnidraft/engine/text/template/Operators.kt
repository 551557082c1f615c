package org.omnidraft.engine.text.template

/** What Python's binary operators make of two values. */
internal fun operate(operator: String, left: Any?, right: Any?, budget: Budget): Any? {
    if (left is Undefined) left.fail()
    if (right is Undefined) right.fail()
    budget.spend(1)
    val a = number(left)
    val b = number(right)
    return when {
        operator == "%" && left is String -> {
            val values = if (right is PyTuple) right else PyTuple(listOf(right))
            percent(left, values, right as? Map<*, *>, budget)
        }
        a is Long && b is Long -> try {
            whole(operator, a, b)
        } catch (error: ArithmeticException) {
            throw TemplateException(if (b == 0L) "division by zero" else "a number is too large", error)
        }
        a != null && b != null -> real(operator, a.toDouble(), b.toDouble())
        operator == "+" && left is String && right is String -> {
            budget.text(left.length.toLong() + right.length)
            left + right
        }
        operator == "+" && left is List<*> && right is List<*> && (left is PyTuple) == (right is PyTuple) -> {
            budget.spend(left.size + right.size)
            if (left is PyTuple) PyTuple(left + right) else left + right
        }
        operator == "*" && b is Long -> times(left, b, budget) ?: unsupported(operator, left, right)
        operator == "*" && a is Long -> times(right, a, budget) ?: unsupported(operator, left, right)
        else -> unsupported(operator, left, right)
    }
}

private fun unsupported(operator: String, left: Any?, right: Any?): Nothing = throw TemplateException(
    "unsupported operand types for $operator: '${typeName(left)}' and '${typeName(right)}'"
)

private fun whole(operator: String, a: Long, b: Long): Any = when (operator) {
    "+" -> Math.addExact(a, b)
    "-" -> Math.subtractExact(a, b)
    "*" -> Math.multiplyExact(a, b)
    "/" -> if (b == 0L) throw ArithmeticException() else a.toDouble() / b
    "//" -> Math.floorDiv(a, b)
    "%" -> Math.floorMod(a, b)
    else -> when {
        b < 0 -> Math.pow(a.toDouble(), b.toDouble())
        a in -1..1 -> if (b % 2 == 0L && a != 0L || b == 0L) 1L else a
        b > 64 -> throw ArithmeticException()
        else -> (0 until b).fold(1L) { power, _ -> Math.multiplyExact(power, a) }
    }
}

private fun real(operator: String, a: Double, b: Double): Double {
    if (b == 0.0 && operator in setOf("/", "//", "%")) throw TemplateException("division by zero")
    return when (operator) {
        "+" -> a + b
        "-" -> a - b
        "*" -> a * b
        "/" -> a / b
        "//" -> Math.floor(a / b)
        "%" -> a - b * Math.floor(a / b)
        else -> Math.pow(a, b)
    }
}

private fun times(value: Any?, count: Long, budget: Budget): Any? {
    val times = count.coerceIn(0, Int.MAX_VALUE.toLong())
    return when (value) {
        is String -> {
            budget.text(value.length * times)
            value.repeat(times.toInt())
        }
        is List<*> -> {
            budget.spend(value.size * times)
            val all = List(times.toInt() * value.size) { value[it % value.size] }
            if (value is PyTuple) PyTuple(all) else all
        }
        else -> null
    }
}

private val directive = Regex("%(?:\\((\\w+)\\))?([-+ #0]*)(\\d{0,3})(?:\\.(\\d{1,3}))?([sdifFrx%])")

/** Python's `%` of texts, as far as its plain directives go. */
internal fun percent(form: String, values: List<Any?>, named: Map<*, *>?, budget: Budget): String {
    val out = StringBuilder()
    var at = 0
    var used = 0
    while (true) {
        val mark = form.indexOf('%', at)
        if (mark < 0) break
        out.append(form, at, mark)
        val found = directive.matchAt(form, mark)
            ?: throw TemplateException("it formats in a way that is not known here")
        at = found.range.last + 1
        val (key, flags, width, precision, kind) = found.destructured
        if (kind == "%") {
            out.append('%')
            continue
        }
        val value = when {
            key.isNotEmpty() -> named?.get(key) ?: throw TemplateException("nothing is given for '$key'")
            used < values.size -> values[used++]
            else -> throw TemplateException("not enough arguments for format string")
        }
        val text = formatted(value, kind, precision.toIntOrNull(), flags, budget)
        out.append(padded(text, flags, width.toIntOrNull() ?: 0, kind != "s" && kind != "r"))
        budget.text(out.length - mark)
    }
    if (named == null && used < values.size) throw TemplateException("not all arguments converted")
    return out.append(form, at, form.length).toString()
}

private fun formatted(value: Any?, kind: String, precision: Int?, flags: String, budget: Budget): String {
    if (kind == "s") return text(value, budget).let { if (precision != null) it.take(precision) else it }
    if (kind == "r") return text(listOf(value), budget).drop(1).dropLast(1)
    val number = number(value) ?: throw TemplateException("a number is required, not ${typeName(value)}")
    val digits = when (kind) {
        "d", "i" -> number.toLong().toString()
        "x" -> java.lang.Long.toString(number.toLong(), 16)
        else -> java.math.BigDecimal(number.toDouble())
            .setScale(precision ?: 6, java.math.RoundingMode.HALF_EVEN).toPlainString()
    }
    val sign = if (digits.startsWith("-")) "" else if ('+' in flags) "+" else if (' ' in flags) " " else ""
    return sign + digits
}

private fun padded(text: String, flags: String, width: Int, isNumber: Boolean): String = when {
    '-' in flags -> text.padEnd(width)
    '0' in flags && isNumber -> {
        val sign = text.takeWhile { it in "+- " }
        sign + text.drop(sign.length).padStart(width - sign.length, '0')
    }
    else -> text.padStart(width)
}

/** A part of a list or a text; texts are of code points. */
internal fun sliced(value: Any?, start: Any?, stop: Any?, step: Any?, budget: Budget): Any? {
    if (value is Undefined) value.fail()
    if (value is String) {
        budget.text(value.length)
        if (value.any(Char::isSurrogate)) {
            return (sliced(characters(value), start, stop, step, budget) as List<*>).joinToString("")
        }
    }
    val size = (value as? String)?.length ?: (value as? List<*>)?.size
        ?: throw TemplateException("'${typeName(value)}' has no parts")
    val by = place(step) ?: 1
    if (by == 0L) throw TemplateException("slice step cannot be zero")
    fun bound(given: Any?, default: Int): Int {
        val at = place(given) ?: return default
        val absolute = if (at < 0) at + size else at
        return (if (by > 0) absolute.coerceIn(0, size.toLong()) else absolute.coerceIn(-1, size - 1L)).toInt()
    }
    val from = bound(start, if (by > 0) 0 else size - 1)
    val to = bound(stop, if (by > 0) size else -1)
    if (value is String && by == 1L) return if (from < to) value.substring(from, to) else ""
    val pace = by.coerceIn(-size - 1L, size + 1L).toInt()
    val places = if (pace > 0) from until to step pace else from downTo to + 1 step -pace
    budget.spend(1 + places.count())
    return when (value) {
        is String -> places.joinToString("") { value[it].toString() }
        is PyTuple -> PyTuple(places.map { value[it] })
        else -> places.map { (value as List<*>)[it] }
    }
}

private fun place(value: Any?): Long? = when (value) {
    null -> null
    is Undefined -> value.fail()
    else -> number(value) as? Long ?: throw TemplateException("slice indices must be integers or None")
}
