package org.omnidraft.engine.text.template

/**
 * What a rendering may still compute, in units of about a microsecond's work.
 *
 * A chat template is a program that came with a model. It sees nothing of the machine, but it could
 * loop for days or fill the memory. What makes much spends before it begins.
 *
 * @param given what the template is given: the more, the more may be computed.
 */
internal class Budget(given: Any?) {
    private var left = Long.MAX_VALUE

    init {
        left = BASE + SHARE * cost(given)
    }

    fun spend(units: Int) = spend(units.toLong())

    /** @throws TemplateException nothing is left. */
    fun spend(units: Long) {
        left -= units
        if (left < 0) throw TemplateException("it computes too much, perhaps without end")
    }

    /** Spend what a text of so many characters costs. */
    fun text(length: Int) = spend(1L + length / CHARACTERS)

    fun text(length: Long) = spend(1L + length / CHARACTERS)

    /** Spend what it may cost to compare a part at every place of a text. */
    fun search(text: String, part: String) {
        text(text.length)
        spend((text.length / COMPARED).toLong() * (part.length / COMPARED))
    }

    private fun cost(value: Any?): Long = 1 + when (value) {
        is String -> (value.length / CHARACTERS).toLong()
        is Collection<*> -> value.sumOf(::cost)
        is Map<*, *> -> value.keys.sumOf(::cost) + value.values.sumOf(::cost)
        else -> 0
    }

    companion object {
        private const val BASE = 500_000L
        private const val SHARE = 50L
        private const val CHARACTERS = 100
        private const val COMPARED = 20

        /** Refuse a width or a count with which a function makes much of nothing. */
        fun width(value: Any?): Int {
            val width = number(value)?.toLong()
                ?: throw TemplateException("a width must be a number, not ${typeName(value)}")
            if (width !in -MOST_WIDTH..MOST_WIDTH) {
                throw TemplateException("it asks for a width of more than $MOST_WIDTH")
            }
            return width.toInt()
        }

        private const val MOST_WIDTH = 1000L
    }
}
