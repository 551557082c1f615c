package org.omnidraft.engine.text.template

import org.omnidraft.engine.text.isPythonSpace

/**
 * Jinja's filters, as far as chat templates use them.
 *
 * @param test computes a test by its name.
 */
internal class Filters(private val budget: Budget, private val test: (String, Any?, Given) -> Boolean) {
    fun apply(name: String, value: Any?, given: Given): Any? {
        budget.spend(1)
        return when (name) {
            "default", "d" -> default(value, given)
            "length", "count" -> length(value)
            "string" -> text(value, budget)
            "safe" -> value
            "int" -> whole(value, given)
            "float" -> number(value)?.toDouble() ?: (value as? String)?.trim()?.toDoubleOrNull()
                ?: given[0, "default", 0.0]
            "abs" -> when (val number = number(value)) {
                is Long -> Math.abs(number)
                is Double -> Math.abs(number)
                else -> throw TemplateException("bad operand type for abs(): '${typeName(value)}'")
            }
            "round" -> round(value, given)
            "first" -> items(value).let { if (it.isEmpty()) Undefined("first") else it.first() }
            "last" -> items(value).let { if (it.isEmpty()) Undefined("last") else it.last() }
            "list" -> items(value).toList()
            "items" -> if (value is Undefined) emptyList() else pairs(value)
            "reverse" -> if (value is String) value.reversed() else items(value).reversed()
            "join" -> join(value, given)
            "map" -> items(value).map(mapping(given))
            "select" -> items(value).filter(testing(given, null))
            "reject" -> items(value).filterNot(testing(given, null))
            "selectattr" -> items(value).filter(testing(Given(given.positional.drop(1), given.named), given[0, ""]))
            "rejectattr" -> items(value).filterNot(testing(Given(given.positional.drop(1), given.named), given[0, ""]))
            "sort" -> sorted(items(value), given)
            "unique" -> unique(items(value), given)
            "min" -> items(value).minWithOrNull { a, b -> compare(a, b, budget) } ?: Undefined("min")
            "max" -> items(value).maxWithOrNull { a, b -> compare(a, b, budget) } ?: Undefined("max")
            "sum" -> items(value).map(of(given[0, "attribute"]))
                .fold(given[1, "start", 0L]) { sum, each -> operate("+", sum, each, budget) }
            "dictsort" -> pairs(value).sortedWith { a, b -> compare(folded(a[0]), folded(b[0]), budget) }
            "groupby" -> grouped(items(value), of(given[0, "attribute"]))
            "batch" -> items(value).chunked(maxOf(1, Budget.width(given[0, "linecount"])))
            "attr" -> of(given[0, "name"])(value)
            "tojson" -> json(value, given)
            else -> ofText(name, text(value, budget), given)
        }
    }

    private fun ofText(name: String, value: String, given: Given): Any? {
        budget.text(value.length)
        return when (name) {
            "trim" -> given[0, "chars"].let { chars ->
                val taken = chars?.let { text(it, budget) }
                value.trim { character -> if (taken == null) isPythonSpace(character) else character in taken }
            }
            "upper" -> value.uppercase()
            "lower" -> value.lowercase()
            "capitalize" -> capitalized(value)
            "title" -> titled(value)
            "center" -> centered(value, Budget.width(given[0, "width", 80L]))
            "replace" -> {
                val most = (given[2, "count"] as? Long ?: -1).toInt()
                replaced(value, text(given[0, "old"], budget), text(given[1, "new"], budget), most, budget)
            }
            "indent" -> indented(value, given)
            "format" -> percent(value, given.positional, given.named.takeIf { it.isNotEmpty() }, budget)
            "escape", "e" -> value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
                .replace("'", "&#39;").replace("\"", "&#34;")
            else -> throw TemplateException("No filter named '$name'")
        }
    }

    private fun default(value: Any?, given: Given): Any? {
        val replaces = value is Undefined || truth(given[1, "boolean", false]) && !truth(value)
        return if (replaces) given[0, "default_value", ""] else value
    }

    private fun length(value: Any?): Long = when (value) {
        is String -> value.codePointCount(0, value.length).toLong()
        is Collection<*> -> value.size.toLong()
        is Map<*, *> -> value.size.toLong()
        is Undefined -> 0
        else -> throw TemplateException("object of type '${typeName(value)}' has no len()")
    }

    private fun whole(value: Any?, given: Given): Any? = when (val number = number(value)) {
        is Long -> number
        is Double -> number.toLong()
        else -> (value as? String)?.trim()?.let { it.toLongOrNull() ?: it.toDoubleOrNull()?.toLong() }
            ?: given[0, "default", 0L]
    }

    private fun round(value: Any?, given: Given): Double {
        val places = Budget.width(given[0, "precision", 0L])
        val number = java.math.BigDecimal(number(value)?.toDouble() ?: throw TemplateException("round takes a number"))
        val mode = when (given[1, "method", "common"]) {
            "ceil" -> java.math.RoundingMode.CEILING
            "floor" -> java.math.RoundingMode.FLOOR
            else -> java.math.RoundingMode.HALF_EVEN
        }
        return number.setScale(places, mode).toDouble()
    }

    private fun items(value: Any?): List<Any?> = iterate(value, budget).also { budget.spend(it.size) }

    private fun pairs(value: Any?): List<PyTuple> {
        val dict = value as? Map<*, *> ?: throw TemplateException("Can only get item pairs from a mapping")
        budget.spend(dict.size)
        return dict.entries.map { PyTuple(listOf(it.key, it.value)) }
    }

    /** What gets an attribute, or items of items by dots between; null: the value itself. */
    private fun of(attribute: Any?): (Any?) -> Any? {
        if (attribute == null) return { it }
        val parts = text(attribute, budget).split('.')
        return { value -> parts.fold(value) { each, part -> member(each, part) } }
    }

    private fun member(of: Any?, name: String): Any? = when (of) {
        is Map<*, *> -> if (of.containsKey(name)) of[name] else Undefined(name)
        is List<*> -> name.toIntOrNull()?.let { if (it in of.indices) of[it] else null } ?: Undefined(name)
        is Namespace -> of.values.getOrElse(name) { Undefined(name) }
        else -> Undefined(name)
    }

    private fun mapping(given: Given): (Any?) -> Any? {
        if ("attribute" in given.named) {
            val get = of(given.named["attribute"])
            val default = given.named["default"]
            return { value -> get(value).let { if (it is Undefined && default != null) default else it } }
        }
        val name = given[0, ""] as? String ?: throw TemplateException("map requires a filter argument")
        val rest = Given(given.positional.drop(1), given.named)
        return { value -> apply(name, value, rest) }
    }

    private fun testing(given: Given, attribute: Any?): (Any?) -> Boolean {
        val get = of(attribute)
        val name = given[0, ""] as? String ?: return { truth(get(it)) }
        val rest = Given(given.positional.drop(1), given.named)
        return { value -> test(name, get(value), rest) }
    }

    private fun join(value: Any?, given: Given): String {
        val between = text(given[0, "d", ""], budget)
        val parts = items(value).map(of(given[1, "attribute"])).map { text(it, budget) }
        budget.text(parts.sumOf { it.length.toLong() + between.length })
        return parts.joinToString(between)
    }

    private fun folded(value: Any?): Any? = if (value is String) value.lowercase() else value

    private fun key(given: Given, attribute: String): (Any?) -> Any? {
        val get = of(given.named[attribute])
        return if (truth(given.named["case_sensitive"])) get else ({ folded(get(it)) })
    }

    private fun sorted(items: List<Any?>, given: Given): List<Any?> {
        val key = key(given, "attribute")
        val order = Comparator<Any?> { a, b -> compare(key(a), key(b), budget) }
        return items.sortedWith(if (truth(given[0, "reverse", false])) order.reversed() else order)
    }

    private fun unique(items: List<Any?>, given: Given): List<Any?> {
        val key = key(given, "attribute")
        val seen = ArrayList<Any?>()
        return items.filter { item ->
            val own = key(item)
            seen.none { same(it, own, budget) }.also { if (it) seen += own }
        }
    }

    private fun grouped(items: List<Any?>, get: (Any?) -> Any?): List<Any?> {
        val order = items.sortedWith { a, b -> compare(get(a), get(b), budget) }
        val groups = ArrayList<Pair<Any?, ArrayList<Any?>>>()
        for (item in order) {
            val own = get(item)
            if (groups.isEmpty() || !same(groups.last().first, own, budget)) groups += own to ArrayList()
            groups.last().second += item
        }
        return groups.map { (own, all) -> PyTuple(listOf(own, all)) }
    }

    private fun indented(value: String, given: Given): String {
        val width = given[0, "width", 4L]
        val indent = if (width is String) width else " ".repeat(maxOf(0, Budget.width(width)))
        val lines = lines(value + "\n")
        budget.text(lines.size.toLong() * indent.length + value.length)
        val blank = truth(given[2, "blank", false])
        val rest = lines.drop(1).joinToString("") { "\n" + (if (blank || it.isNotEmpty()) indent else "") + it }
        return (if (truth(given[1, "first", false])) indent else "") + lines.first() + rest
    }

    private fun json(value: Any?, given: Given): String {
        val indent = given[1, "indent"]?.let { Budget.width(it) }
        val between = (given[2, "separators"] as? List<*>)?.map { text(it, budget) }
        val pair = between?.takeIf { it.size == 2 }?.let { it[0] to it[1] }
        val ascii = truth(given[0, "ensure_ascii", false])
        return JsonWriter(budget, indent, pair, truth(given[3, "sort_keys", false]), ascii).write(value)
    }
}
