package org.omnidraft.engine.text.template

/** Names and their values within a part of a template; [parent] is what stands around it. */
internal class Scope(val parent: Scope?) {
    val values = HashMap<String, Any?>()

    operator fun get(name: String): Any? {
        var scope: Scope? = this
        while (scope != null) {
            if (name in scope.values) return scope.values[name]
            scope = scope.parent
        }
        return Undefined(name)
    }
}

/** How a statement ended. */
private enum class Then { GO_ON, BREAK, CONTINUE }

/** Runs the statements of a template, and computes its expressions. */
internal class Interpreter(private val budget: Budget) {
    private val filters = Filters(budget, ::testOf)
    private val methods = Methods(budget)
    private var calls = 0

    fun run(body: List<Statement>, scope: Scope, out: StringBuilder) {
        all(body, scope, out)
    }

    private fun all(body: List<Statement>, scope: Scope, out: StringBuilder): Then {
        for (statement in body) {
            val then = one(statement, scope, out)
            if (then != Then.GO_ON) return then
        }
        return Then.GO_ON
    }

    private fun one(statement: Statement, scope: Scope, out: StringBuilder): Then {
        budget.spend(1)
        when (statement) {
            is Data -> append(statement.text, out)
            is Output -> append(text(value(statement.value, scope), budget), out)
            is If -> {
                val branch = statement.branches.firstOrNull { truth(value(it.first, scope)) }
                return all(branch?.second ?: statement.otherwise, scope, out)
            }
            is For -> loop(statement, iterate(value(statement.over, scope), budget), scope, out, 1)
            is Assign -> assign(statement.target, value(statement.value, scope), scope)
            is AssignBlock -> {
                val text = captured(statement.body, Scope(scope))
                assign(statement.target, filtered(statement.filter, text, scope), scope)
            }
            is MacroOf -> scope.values[statement.name] = macro(statement.signature, statement.body, scope)
            is CallBlock -> {
                val caller = macro(statement.signature, statement.body, scope)
                val function = value(statement.call.function, scope)
                val given = given(statement.call.arguments, scope)
                append(text(call(function, Given(given.positional, given.named + ("caller" to caller))), budget), out)
            }
            is FilterBlock -> {
                val text = captured(statement.body, Scope(scope))
                append(text(filtered(statement.filter, text, scope), budget), out)
            }
            is Scoped -> {
                val inner = Scope(scope)
                for ((target, value) in statement.values) assign(target, value(value, scope), inner)
                return all(statement.body, inner, out)
            }
            Break -> return Then.BREAK
            Continue -> return Then.CONTINUE
        }
        return Then.GO_ON
    }

    private fun append(text: String, out: StringBuilder) {
        budget.text(text.length)
        out.append(text)
    }

    private fun captured(body: List<Statement>, scope: Scope) = StringBuilder().also { all(body, scope, it) }.toString()

    // --- loops, macros, assignments -----------------------------------------------------------

    private fun loop(node: For, over: List<Any?>, scope: Scope, out: StringBuilder, depth: Int) {
        val items = if (node.test == null) over else over.filter { item ->
            budget.spend(1)
            truth(value(node.test, Scope(scope).also { assign(node.target, item, it) }))
        }
        val loop = Loop(items, depth, budget) { given ->
            if (!node.recursive) throw TemplateException("the loop is not recursive")
            val inner = iterate(given[0, ""], budget)
            deeper { StringBuilder().also { loop(node, inner, scope, it, depth + 1) }.toString() }
        }
        for (index in items.indices) {
            budget.spend(1)
            loop.index = index
            val inner = Scope(scope)
            inner.values["loop"] = loop
            assign(node.target, items[index], inner)
            if (all(node.body, inner, out) == Then.BREAK) break
        }
        if (items.isEmpty()) all(node.otherwise, Scope(scope), out)
    }

    private fun macro(signature: Signature, body: List<Statement>, scope: Scope) = Callable { given ->
        deeper {
            val inner = Scope(scope)
            val names = signature.parameters.map { it.first }
            for ((index, parameter) in signature.parameters.withIndex()) {
                val (name, default) = parameter
                inner.values[name] = if (given.has(index, name)) given[index, name]
                else if (default != null) value(default, inner) else Undefined(name)
            }
            inner.values["caller"] = given.named["caller"] ?: Undefined("caller")
            inner.values["varargs"] = PyTuple(given.positional.drop(names.size))
            inner.values["kwargs"] = given.named - names.toSet() - "caller"
            captured(body, inner)
        }
    }

    private fun <T> deeper(block: () -> T): T {
        if (++calls > MOST_CALLS) throw TemplateException("it calls itself without end")
        return block().also { calls-- }
    }

    private fun assign(target: Target, value: Any?, scope: Scope) {
        when (target) {
            is NameTarget -> scope.values[target.name] = value
            is NamespaceTarget -> {
                val space = scope[target.name] as? Namespace
                    ?: throw TemplateException("cannot assign attribute on non-namespace object")
                space.values[target.attribute] = value
            }
            is TupleTarget -> {
                val parts = iterate(value, budget)
                if (parts.size != target.items.size) {
                    throw TemplateException("${parts.size} values for ${target.items.size} names")
                }
                target.items.forEachIndexed { i, each -> assign(each, parts[i], scope) }
            }
        }
    }

    // --- expressions --------------------------------------------------------------------------

    private fun value(node: Expression, scope: Scope): Any? {
        budget.spend(1)
        return when (node) {
            is Constant -> node.value
            is Name -> scope[node.name]
            is ListOf -> node.items.map { value(it, scope) }
            is TupleOf -> PyTuple(node.items.map { value(it, scope) })
            is DictOf -> node.items.associate { (key, item) -> key(value(key, scope)) to value(item, scope) }
            is Attribute -> attribute(value(node.of, scope), node.name)
            is Item -> item(node, scope)
            is SliceOf -> throw TemplateException("a slice stands for nothing by itself")
            is Call -> call(value(node.function, scope), given(node.arguments, scope))
            is FilterOf -> filters.apply(node.name, node.of?.let { value(it, scope) }, given(node.arguments, scope))
            is TestOf -> testOf(node.name, value(node.of, scope), given(node.arguments, scope))
            is Operation -> operate(node.operator, value(node.left, scope), value(node.right, scope), budget)
            is Sign -> signed(node.operator, value(node.of, scope))
            is Concatenation -> node.parts.map { text(value(it, scope), budget) }
                .also { parts -> budget.text(parts.sumOf { it.length.toLong() }) }.joinToString("")
            is Comparison -> compared(node, scope)
            is Both -> value(node.left, scope).let { if (truth(it)) value(node.right, scope) else it }
            is Either -> value(node.left, scope).let { if (truth(it)) it else value(node.right, scope) }
            is Negation -> !truth(value(node.of, scope))
            is Conditional -> if (truth(value(node.test, scope))) value(node.then, scope)
            else node.otherwise?.let { value(it, scope) } ?: if (node.otherwise == null) Undefined("else") else null
        }
    }

    /** What may be a key of a dict; all of it is read. */
    private fun key(value: Any?): Any? {
        if (value is Undefined) value.fail()
        if (value is Map<*, *> || value is List<*> && value !is PyTuple) {
            throw TemplateException("unhashable type: '${typeName(value)}'")
        }
        text(value, budget)
        return value
    }

    private fun signed(operator: String, value: Any?): Any = when (val number = number(value)) {
        is Long -> if (operator == "-") Math.negateExact(number) else number
        is Double -> if (operator == "-") -number else number
        else -> throw TemplateException("bad operand type for unary $operator: '${typeName(value)}'")
    }

    private fun compared(node: Comparison, scope: Scope): Boolean {
        var left = value(node.first, scope)
        for ((operator, each) in node.others) {
            val right = value(each, scope)
            val holds = when (operator) {
                "==" -> same(left, right, budget)
                "!=" -> !same(left, right, budget)
                "in" -> contains(right, left, budget)
                "not in" -> !contains(right, left, budget)
                "<" -> compare(left, right, budget) < 0
                "<=" -> compare(left, right, budget) <= 0
                ">" -> compare(left, right, budget) > 0
                else -> compare(left, right, budget) >= 0
            }
            if (!holds) return false
            left = right
        }
        return true
    }

    private fun given(arguments: Arguments, scope: Scope): Given {
        val positional = arguments.positional.map { value(it, scope) }
        val named = arguments.named.associate { (name, node) -> name to value(node, scope) }
        if (arguments.more == null && arguments.moreNamed == null) return Given(positional, named)
        val more = arguments.more?.let { iterate(value(it, scope), budget) }.orEmpty()
        val moreNamed = arguments.moreNamed?.let { value(it, scope) as? Map<*, *> }.orEmpty()
        return Given(positional + more, named + moreNamed.mapKeys { it.key.toString() })
    }

    private fun call(function: Any?, given: Given): Any? = when (function) {
        is Callable -> function.call(given)
        is Loop -> function.again(given)
        is Undefined -> function.fail()
        else -> throw TemplateException("'${typeName(function)}' object is not callable")
    }

    private fun attribute(of: Any?, name: String): Any? = when (of) {
        is Undefined -> of.fail()
        is Namespace -> if (name in of.values) of.values[name] else Undefined(name)
        is Loop -> of[name]
        is String, is List<*> -> methods.find(of, name) ?: Undefined(name)
        is Map<*, *> -> methods.find(of, name) ?: if (of.containsKey(name)) of[name] else Undefined(name)
        else -> Undefined(name)
    }

    private fun item(node: Item, scope: Scope): Any? {
        val of = value(node.of, scope)
        val part = node.key
        if (part is SliceOf) {
            fun bound(each: Expression?) = each?.let { value(it, scope) }
            return sliced(of, bound(part.start), bound(part.stop), bound(part.step), budget)
        }
        val key = value(part, scope)
        if (of is Undefined) of.fail()
        if (of is Map<*, *>) {
            key(key)
            if (of.containsKey(key)) return of[key]
        }
        if ((of is List<*> || of is String) && number(key) is Long) {
            val all = if (of is String) characters(of) else of as List<*>
            budget.spend(1 + if (of is String) all.size / 10 else 0)
            val at = number(key)!!.toLong().let { if (it < 0) it + all.size else it }
            return if (at in all.indices) all[at.toInt()] else Undefined(key.toString())
        }
        return if (key is String) attribute(of, key) else Undefined(text(key, budget))
    }

    private fun filtered(filter: Expression?, text: String, scope: Scope): Any? {
        if (filter !is FilterOf) return text
        val of = filtered(filter.of, text, scope)
        return filters.apply(filter.name, of, given(filter.arguments, scope))
    }

    private fun testOf(name: String, value: Any?, given: Given): Boolean {
        budget.spend(1)
        fun other() = given[0, ""]
        return when (name) {
            "defined" -> value !is Undefined
            "undefined" -> value is Undefined
            "none" -> value == null
            "true" -> value == true
            "false" -> value == false
            "boolean" -> value is Boolean
            "string" -> value is String
            "mapping" -> value is Map<*, *>
            "sequence" -> value is String || value is List<*> || value is Map<*, *>
            "iterable" -> value is String || value is Collection<*> || value is Map<*, *> || value is Undefined
            "number" -> number(value) != null
            "integer" -> value is Long
            "float" -> value is Double
            "callable" -> value is Callable
            "odd" -> same(operate("%", value, 2L, budget), 1L, budget)
            "even" -> same(operate("%", value, 2L, budget), 0L, budget)
            "divisibleby" -> same(operate("%", value, given[0, "num"], budget), 0L, budget)
            "eq", "equalto", "==" -> same(value, other(), budget)
            "ne", "!=" -> !same(value, other(), budget)
            "lt", "lessthan", "<" -> compare(value, other(), budget) < 0
            "le", "<=" -> compare(value, other(), budget) <= 0
            "gt", "greaterthan", ">" -> compare(value, other(), budget) > 0
            "ge", ">=" -> compare(value, other(), budget) >= 0
            "in" -> contains(other(), value, budget)
            "sameas" -> value === other() || value is Boolean && value == other()
            "lower" -> text(value, budget).let { it == it.lowercase() && it != it.uppercase() }
            "upper" -> text(value, budget).let { it == it.uppercase() && it != it.lowercase() }
            else -> throw TemplateException("No test named '$name'")
        }
    }

    private companion object {
        const val MOST_CALLS = 100
    }
}

/** `loop` within a loop. */
internal class Loop(
    private val items: List<Any?>,
    private val depth: Int,
    private val budget: Budget,
    val again: (Given) -> Any?,
) {
    var index = 0
    private var changed: List<Any?>? = null

    operator fun get(name: String): Any? = when (name) {
        "index" -> index + 1L
        "index0" -> index.toLong()
        "revindex" -> items.size.toLong() - index
        "revindex0" -> items.size - 1L - index
        "first" -> index == 0
        "last" -> index == items.size - 1
        "length" -> items.size.toLong()
        "previtem" -> if (index > 0) items[index - 1] else Undefined(name)
        "nextitem" -> if (index < items.size - 1) items[index + 1] else Undefined(name)
        "depth" -> depth.toLong()
        "depth0" -> depth - 1L
        "cycle" -> Callable { given ->
            if (given.positional.isEmpty()) throw TemplateException("no items for cycling given")
            given.positional[index % given.positional.size]
        }
        "changed" -> Callable { given ->
            val before = changed
            changed = given.positional
            before == null || !same(before, given.positional, budget)
        }
        else -> Undefined(name)
    }
}
