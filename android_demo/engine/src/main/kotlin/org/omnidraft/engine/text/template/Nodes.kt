package org.omnidraft.engine.text.template

/** An expression of a template. */
internal sealed interface Expression

internal class Constant(val value: Any?) : Expression
internal class Name(val name: String) : Expression
internal class ListOf(val items: List<Expression>) : Expression
internal class TupleOf(val items: List<Expression>) : Expression
internal class DictOf(val items: List<Pair<Expression, Expression>>) : Expression
internal class Attribute(val of: Expression, val name: String) : Expression
internal class Item(val of: Expression, val key: Expression) : Expression
internal class SliceOf(val start: Expression?, val stop: Expression?, val step: Expression?) : Expression
internal class Call(val function: Expression, val arguments: Arguments) : Expression
internal class FilterOf(val of: Expression?, val name: String, val arguments: Arguments) : Expression
internal class TestOf(val of: Expression, val name: String, val arguments: Arguments) : Expression
internal class Operation(val operator: String, val left: Expression, val right: Expression) : Expression
internal class Sign(val operator: String, val of: Expression) : Expression
internal class Concatenation(val parts: List<Expression>) : Expression
internal class Comparison(val first: Expression, val others: List<Pair<String, Expression>>) : Expression
internal class Both(val left: Expression, val right: Expression) : Expression
internal class Either(val left: Expression, val right: Expression) : Expression
internal class Negation(val of: Expression) : Expression
internal class Conditional(val test: Expression, val then: Expression, val otherwise: Expression?) : Expression

/** What a call is given; [more] are `*` and `**` arguments. */
internal class Arguments(
    val positional: List<Expression> = emptyList(),
    val named: List<Pair<String, Expression>> = emptyList(),
    val more: Expression? = null,
    val moreNamed: Expression? = null,
)

/** A statement of a template. */
internal sealed interface Statement

internal class Data(val text: String) : Statement
internal class Output(val value: Expression) : Statement
internal class If(val branches: List<Pair<Expression, List<Statement>>>, val otherwise: List<Statement>) : Statement
internal class For(
    val target: Target,
    val over: Expression,
    val test: Expression?,
    val body: List<Statement>,
    val otherwise: List<Statement>,
    val recursive: Boolean,
) : Statement
internal class Assign(val target: Target, val value: Expression) : Statement
internal class AssignBlock(val target: Target, val filter: Expression?, val body: List<Statement>) : Statement
internal class MacroOf(val name: String, val signature: Signature, val body: List<Statement>) : Statement
internal class CallBlock(val call: Call, val signature: Signature, val body: List<Statement>) : Statement
internal class FilterBlock(val filter: Expression, val body: List<Statement>) : Statement
internal class Scoped(val values: List<Pair<Target, Expression>>, val body: List<Statement>) : Statement
internal object Break : Statement
internal object Continue : Statement

/** Parameters of a macro with their defaults. */
internal class Signature(val parameters: List<Pair<String, Expression?>>)

/** What is assigned to. */
internal sealed interface Target

internal class NameTarget(val name: String) : Target
internal class NamespaceTarget(val name: String, val attribute: String) : Target
internal class TupleTarget(val items: List<Target>) : Target
