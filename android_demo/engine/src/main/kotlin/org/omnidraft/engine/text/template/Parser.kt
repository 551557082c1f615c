package org.omnidraft.engine.text.template

private const val DEEPEST = 300

/** Parses a template by Jinja's grammar, as far as chat templates use it. */
internal class Parser(source: String) {
    private val tokens = Lexer(source).tokens()
    private var at = 0
    private var depth = 0

    private val current get() = tokens[at]

    fun template(): List<Statement> {
        val body = statements(emptySet())
        if (current.kind != Kind.END) unexpected()
        return body
    }

    // --- statements ---------------------------------------------------------------------------

    /** Statements up to a tag of one of these names, which is not taken. */
    private fun statements(ends: Set<String>): List<Statement> = nested {
        val found = ArrayList<Statement>()
        while (true) {
            when (current.kind) {
                Kind.DATA -> found += Data(take().text)
                Kind.VARIABLE_BEGIN -> {
                    take()
                    found += Output(tuple())
                    expect(Kind.VARIABLE_END)
                }
                Kind.BLOCK_BEGIN -> {
                    val name = tokens[at + 1]
                    if (name.kind == Kind.NAME && name.text in ends) return@nested found
                    take()
                    statement()?.let { found += it }
                    expect(Kind.BLOCK_END)
                }
                Kind.END -> if (ends.isEmpty()) return@nested found else fail("a block does not end")
                else -> unexpected()
            }
        }
        @Suppress("UNREACHABLE_CODE")
        found
    }

    /** Take the end of this tag, a body, and the beginning of the tag that ends it with its name. */
    private fun body(vararg ends: String): Pair<List<Statement>, String> {
        expect(Kind.BLOCK_END)
        val body = statements(ends.toSet())
        take()
        return body to take().text
    }

    private fun statement(): Statement? = when (val tag = expect(Kind.NAME).text) {
        "if" -> conditional()
        "for" -> loop()
        "set" -> assignment()
        "macro" -> expect(Kind.NAME).text.let { name -> signature().let { MacroOf(name, it, body("endmacro").first) } }
        "call" -> {
            val signature = if (isOperator("(")) signature() else Signature(emptyList())
            val call = expression() as? Call ?: fail("expected a call")
            CallBlock(call, signature, body("endcall").first)
        }
        "filter" -> FilterBlock(filters(null, begun = true), body("endfilter").first)
        "with" -> {
            val values = ArrayList<Pair<Target, Expression>>()
            while (current.kind != Kind.BLOCK_END) {
                if (values.isNotEmpty()) operator(",")
                val target = target()
                operator("=")
                values += target to expression()
            }
            Scoped(values, body("endwith").first)
        }
        "generation" -> Scoped(emptyList(), body("endgeneration").first)
        "block" -> {
            expect(Kind.NAME)
            val scope = Scoped(emptyList(), body("endblock").first)
            if (current.kind == Kind.NAME) take()
            scope
        }
        "break" -> Break
        "continue" -> Continue
        else -> fail("the tag '$tag' is not known here")
    }

    private fun conditional(): Statement {
        val branches = ArrayList<Pair<Expression, List<Statement>>>()
        while (true) {
            val test = tuple(conditionals = false)
            val (body, end) = body("elif", "else", "endif")
            branches += test to body
            if (end == "elif") continue
            return If(branches, if (end == "else") body("endif").first else emptyList())
        }
    }

    private fun loop(): Statement {
        val target = targets { isName("in") }
        name("in")
        val over = tuple(conditionals = false) { isName("recursive") }
        val test = if (skipName("if")) expression() else null
        val recursive = skipName("recursive")
        val (body, end) = body("else", "endfor")
        return For(target, over, test, body, if (end == "else") body("endfor").first else emptyList(), recursive)
    }

    private fun assignment(): Statement {
        val target = targets { isOperator("=") || current.kind == Kind.BLOCK_END || isOperator("|") }
        if (skipOperator("=")) return Assign(target, tuple())
        val filter = if (isOperator("|")) filters(null, begun = false) else null
        return AssignBlock(target, filter, body("endset").first)
    }

    private fun signature(): Signature {
        operator("(")
        val parameters = ArrayList<Pair<String, Expression?>>()
        while (!isOperator(")")) {
            if (parameters.isNotEmpty()) operator(",")
            val name = expect(Kind.NAME).text
            parameters += name to if (skipOperator("=")) expression() else null
        }
        operator(")")
        return Signature(parameters)
    }

    private fun targets(ends: () -> Boolean): Target {
        val found = ArrayList<Target>()
        var isTuple = false
        while (true) {
            if (found.isNotEmpty()) {
                if (!skipOperator(",")) break
                isTuple = true
                if (ends()) break
            }
            found += target()
        }
        return if (isTuple) TupleTarget(found) else found[0]
    }

    private fun target(): Target = nested {
        if (skipOperator("(")) return@nested targets { isOperator(")") }.also { operator(")") }
        val name = expect(Kind.NAME).text
        if (name in CONSTANTS) fail("'$name' cannot be assigned to")
        if (skipOperator(".")) NamespaceTarget(name, expect(Kind.NAME).text) else NameTarget(name)
    }

    // --- expressions --------------------------------------------------------------------------

    /** One expression, or several with commas between, which are a tuple. */
    private fun tuple(
        conditionals: Boolean = true, explicit: Boolean = false, ends: () -> Boolean = { false },
    ): Expression {
        val items = ArrayList<Expression>()
        var isTuple = false
        while (true) {
            if (items.isNotEmpty()) {
                if (!skipOperator(",")) break
                isTuple = true
            }
            val over = current.kind == Kind.VARIABLE_END || current.kind == Kind.BLOCK_END || isOperator(")")
            if (over || ends()) break
            items += if (conditionals) expression() else either()
        }
        if (!isTuple && items.size == 1) return items[0]
        if (!isTuple && !explicit) fail("expected an expression, got $current")
        return TupleOf(items)
    }

    private fun expression(): Expression = nested {
        var value = either()
        while (skipName("if")) {
            val test = either()
            value = Conditional(test, value, if (skipName("else")) expression() else null)
        }
        value
    }

    private fun either(): Expression = leftwards(::both) { if (skipName("or")) ({ l, r -> Either(l, r) }) else null }

    private fun both(): Expression = leftwards(::negation) { if (skipName("and")) ({ l, r -> Both(l, r) }) else null }

    private fun negation(): Expression = nested { if (skipName("not")) Negation(negation()) else comparison() }

    private fun comparison(): Expression {
        val first = sum()
        val others = ArrayList<Pair<String, Expression>>()
        while (true) {
            val operator = when {
                current.kind == Kind.OPERATOR && current.text in COMPARISONS -> take().text
                skipName("in") -> "in"
                isName("not") && tokens[at + 1].let { it.kind == Kind.NAME && it.text == "in" } -> {
                    at += 2
                    "not in"
                }
                else -> break
            }
            others += operator to sum()
        }
        return if (others.isEmpty()) first else Comparison(first, others)
    }

    private fun sum() = operations(setOf("+", "-"), ::concatenation)

    private fun concatenation(): Expression {
        val parts = arrayListOf(product())
        while (skipOperator("~")) parts += product()
        return if (parts.size == 1) parts[0] else Concatenation(parts)
    }

    private fun product() = operations(setOf("*", "/", "//", "%"), ::power)

    private fun power() = operations(setOf("**")) { unary() }

    private fun operations(operators: Set<String>, part: () -> Expression) = leftwards(part) {
        if (current.kind == Kind.OPERATOR && current.text in operators) {
            take().text.let { operator -> { l, r -> Operation(operator, l, r) } }
        } else {
            null
        }
    }

    private fun leftwards(part: () -> Expression, next: () -> ((Expression, Expression) -> Expression)?): Expression {
        var left = part()
        while (true) left = (next() ?: return left)(left, part())
    }

    private fun unary(filtered: Boolean = true): Expression = nested {
        val value = when {
            isOperator("-") || isOperator("+") -> Sign(take().text, unary(false))
            else -> primary()
        }
        val whole = postfix(value)
        if (filtered) filters(whole, begun = false) else whole
    }

    private fun primary(): Expression {
        val token = take()
        return when (token.kind) {
            Kind.NAME -> if (token.text in CONSTANTS) Constant(CONSTANTS[token.text]) else Name(token.text)
            Kind.STRING -> {
                val text = StringBuilder(token.text)
                while (current.kind == Kind.STRING) text.append(take().text)
                Constant(text.toString())
            }
            Kind.INTEGER -> Constant(integer(token.text))
            Kind.FLOAT -> Constant(token.text.replace("_", "").toDouble())
            Kind.OPERATOR -> when (token.text) {
                "(" -> tuple(explicit = true).also { operator(")") }
                "[" -> ListOf(several("]") { expression() })
                "{" -> DictOf(several("}") { expression().also { operator(":") } to expression() })
                else -> unexpected(token)
            }
            else -> unexpected(token)
        }
    }

    private fun integer(text: String): Long {
        val digits = text.replace("_", "").lowercase()
        val value = when {
            digits.startsWith("0x") -> digits.drop(2).toLongOrNull(16)
            digits.startsWith("0b") -> digits.drop(2).toLongOrNull(2)
            digits.startsWith("0o") -> digits.drop(2).toLongOrNull(8)
            else -> digits.toLongOrNull()
        }
        return value ?: fail("the number $text is too large")
    }

    private fun <T> several(end: String, item: () -> T): List<T> {
        val items = ArrayList<T>()
        while (!isOperator(end)) {
            if (items.isNotEmpty()) {
                operator(",")
                if (isOperator(end)) break
            }
            items += item()
        }
        operator(end)
        return items
    }

    private fun postfix(of: Expression): Expression {
        var value = of
        while (true) {
            value = when {
                skipOperator(".") -> take().let { token ->
                    when (token.kind) {
                        Kind.NAME -> Attribute(value, token.text)
                        Kind.INTEGER -> Item(value, Constant(integer(token.text)))
                        else -> unexpected(token)
                    }
                }
                skipOperator("[") -> several("]") { subscript() }.let { Item(value, it.singleOrNull() ?: TupleOf(it)) }
                isOperator("(") -> Call(value, arguments())
                else -> return value
            }
        }
    }

    private fun subscript(): Expression {
        fun part() = if (isOperator(":") || isOperator("]") || isOperator(",")) null else expression()
        val start = part()
        if (!skipOperator(":")) return start ?: unexpected()
        val stop = part()
        return SliceOf(start, stop, if (skipOperator(":")) part() else null)
    }

    private fun filters(of: Expression?, begun: Boolean): Expression {
        var value = of
        var first = begun
        while (true) {
            value = when {
                first || skipOperator("|") -> {
                    val name = expect(Kind.NAME).text
                    FilterOf(value, name, if (isOperator("(")) arguments() else Arguments())
                }
                value != null && isName("is") -> test(value)
                value != null && isOperator("(") -> Call(value, arguments())
                else -> return value ?: unexpected()
            }
            first = false
        }
    }

    private fun test(of: Expression): Expression {
        take()
        val negated = skipName("not")
        val name = expect(Kind.NAME).text
        val arguments = when {
            isOperator("(") -> arguments()
            current.kind in VALUES && !(current.kind == Kind.NAME && current.text in NOT_VALUES) ||
                isOperator("[") || isOperator("{") -> Arguments(listOf(postfix(primary())))
            else -> Arguments()
        }
        return TestOf(of, name, arguments).let { if (negated) Negation(it) else it }
    }

    private fun arguments(): Arguments {
        operator("(")
        val positional = ArrayList<Expression>()
        val named = ArrayList<Pair<String, Expression>>()
        var more: Expression? = null
        var moreNamed: Expression? = null
        several(")") {
            val next = tokens[at + 1]
            when {
                skipOperator("*") -> more = expression()
                skipOperator("**") -> moreNamed = expression()
                current.kind == Kind.NAME && next.kind == Kind.OPERATOR && next.text == "=" -> {
                    val name = take().text
                    take()
                    named += name to expression()
                }
                named.isEmpty() && more == null && moreNamed == null -> positional += expression()
                else -> fail("an argument without a name behind one with a name")
            }
        }
        return Arguments(positional, named, more, moreNamed)
    }

    // --- tokens -------------------------------------------------------------------------------

    private fun take(): Token = tokens[at].also { if (at < tokens.size - 1) at++ }

    private fun expect(kind: Kind): Token = if (current.kind == kind) take() else unexpected()

    private fun isOperator(text: String) = current.kind == Kind.OPERATOR && current.text == text

    private fun isName(text: String) = current.kind == Kind.NAME && current.text == text

    private fun skipOperator(text: String) = isOperator(text).also { if (it) take() }

    private fun skipName(text: String) = isName(text).also { if (it) take() }

    private fun operator(text: String) {
        if (!skipOperator(text)) fail("expected '$text', got $current")
    }

    private fun name(text: String) {
        if (!skipName(text)) fail("expected '$text', got $current")
    }

    private fun <T> nested(block: () -> T): T {
        if (++depth > DEEPEST) fail("it is nested too deep")
        return block().also { depth-- }
    }

    private fun unexpected(token: Token = current): Nothing = fail("unexpected $token")

    private fun fail(what: String): Nothing = throw TemplateException("$what (line ${current.line})")

    private companion object {
        val CONSTANTS = mapOf(
            "true" to true, "True" to true, "false" to false, "False" to false, "none" to null, "None" to null,
        )
        val COMPARISONS = setOf("==", "!=", "<", "<=", ">", ">=")
        val VALUES = setOf(Kind.NAME, Kind.STRING, Kind.INTEGER, Kind.FLOAT)
        val NOT_VALUES = setOf("else", "or", "and", "is", "if", "in", "not")
    }
}
