package org.omnidraft.engine.text.template

import java.time.Clock
import java.time.LocalDateTime

/**
 * A Jinja template, as far as chat templates go, set up as Hugging Face's transformers sets Jinja up.
 *
 * No library for Java renders the chat templates in use, and runs on Android: Jinjava, which comes
 * closest, fails at those of Llama 3, Qwen 3, DeepSeek and SmolLM3, and needs java.beans, which Android
 * does not have.
 *
 * What it renders is bounded: see [Budget]. It sees what it is given, and nothing else.
 *
 * @param source its text.
 * @param clock tells templates that ask what day it is.
 * @throws TemplateException it is broken or too long.
 */
internal class Template(source: String, private val clock: Clock = Clock.systemDefaultZone()) {
    private val body: List<Statement>

    init {
        if (source.length > MOST_CHARACTERS) throw TemplateException("it is longer than $MOST_CHARACTERS characters")
        body = bounded { Parser(source).template() }
    }

    /**
     * Render.
     *
     * @param given names and their values: texts, `Boolean`, `Long`, `Double`, null, lists and maps of
     *   these.
     * @throws TemplateException it refuses what it is given, fails, or computes too much.
     */
    fun render(given: Map<String, Any?>): String = bounded {
        val budget = Budget(given)
        val interpreter = Interpreter(budget)
        val root = Scope(null).apply {
            values.putAll(globals(budget))
            values.putAll(given)
        }
        StringBuilder().also { interpreter.run(body, Scope(root), it) }.toString()
    }

    private fun globals(budget: Budget): Map<String, Any?> = mapOf(
        "range" to Callable { given -> range(given, budget) },
        "dict" to Callable { given -> LinkedHashMap(given[0, "", emptyMap<Any?, Any?>()] as Map<*, *>) + given.named },
        "namespace" to Callable { given ->
            val first = given.positional.firstOrNull() as? Map<*, *>
            Namespace(first.orEmpty().mapKeys { it.key.toString() }.toMutableMap().also { it.putAll(given.named) })
        },
        "raise_exception" to Callable { given -> throw TemplateException(text(given[0, "message"], budget)) },
        "strftime_now" to Callable { given -> formatTime(text(given[0, "form"], budget), LocalDateTime.now(clock)) },
    )

    private fun range(given: Given, budget: Budget): List<Long> {
        val numbers = given.positional.map {
            number(it) as? Long ?: throw TemplateException("range() takes integers, not ${typeName(it)}")
        }
        if (numbers.isEmpty() || numbers.size > 3) throw TemplateException("range() takes one to three integers")
        val start = if (numbers.size > 1) numbers[0] else 0
        val stop = if (numbers.size > 1) numbers[1] else numbers[0]
        val step = numbers.getOrElse(2) { 1 }
        if (step == 0L) throw TemplateException("range() arg 3 must not be zero")
        val count = Math.floorDiv(stop - start + step + (if (step > 0) -1 else 1), step).coerceAtLeast(0)
        if (count > MOST_RANGE) throw TemplateException("range too big: at most $MOST_RANGE")
        budget.spend(count)
        return List(count.toInt()) { start + it * step }
    }

    private fun <T> bounded(block: () -> T): T = try {
        block()
    } catch (error: StackOverflowError) {
        throw TemplateException("it is nested too deep, or calls itself without end", error)
    } catch (error: RuntimeException) { // of the wrong kinds of values, as a program's may be
        throw TemplateException(error.message ?: error.javaClass.simpleName, error)
    }

    private companion object {
        const val MOST_CHARACTERS = 100_000
        const val MOST_RANGE = 100_000
    }
}

private val months = "January February March April May June July August September October November December".split(' ')
private val days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(' ')

/** C's `strftime` in English. */
internal fun formatTime(form: String, time: LocalDateTime): String {
    val out = StringBuilder()
    var at = 0
    while (at < form.length) {
        val character = form[at++]
        if (character != '%' || at == form.length) {
            out.append(character)
            continue
        }
        val month = months[time.monthValue - 1]
        val day = days[time.dayOfWeek.value - 1]
        fun two(number: Int) = number.toString().padStart(2, '0')
        when (val kind = form[at++]) {
            'd' -> out.append(two(time.dayOfMonth))
            'm' -> out.append(two(time.monthValue))
            'y' -> out.append(two(time.year % 100))
            'Y' -> out.append(time.year)
            'B' -> out.append(month)
            'b', 'h' -> out.append(month, 0, 3)
            'A' -> out.append(day)
            'a' -> out.append(day, 0, 3)
            'H' -> out.append(two(time.hour))
            'I' -> out.append(two((time.hour + 11) % 12 + 1))
            'M' -> out.append(two(time.minute))
            'S' -> out.append(two(time.second))
            'p' -> out.append(if (time.hour < 12) "AM" else "PM")
            'j' -> out.append(time.dayOfYear.toString().padStart(3, '0'))
            'e' -> out.append(time.dayOfMonth.toString().padStart(2))
            'F' -> out.append(formatTime("%Y-%m-%d", time))
            'T' -> out.append(formatTime("%H:%M:%S", time))
            '%' -> out.append('%')
            else -> throw TemplateException("strftime_now knows no %$kind")
        }
    }
    return out.toString()
}
