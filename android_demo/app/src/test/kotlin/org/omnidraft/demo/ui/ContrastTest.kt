package org.omnidraft.demo.ui

import java.io.File
import javax.xml.parsers.DocumentBuilderFactory
import kotlin.math.pow
import kotlin.test.assertEquals
import kotlin.test.assertTrue
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource

/** Contrast as WCAG 2 defines it, of texts to what is behind them. */
class ContrastTest {
    @ParameterizedTest
    @ValueSource(strings = ["values", "values-night"])
    fun `every text has a contrast of at least 4,5`(theme: String) {
        val colors = colors(theme)
        val texts = colors.keys.filter { it.startsWith("origin_") } +
            listOf("text", "text_quiet", "problem", "accent")
        assertEquals(9, texts.size)
        for (text in texts) check(colors, text, "background", 4.5)
        for (text in listOf("text", "text_quiet")) check(colors, text, "question_background", 4.5)
        check(colors, "chart", "background", 3.0)
    }

    private fun check(colors: Map<String, Int>, text: String, behind: String, least: Double) {
        val light = listOf(text, behind).map { luminance(colors.getValue(it)) }
        val contrast = (light.max() + 0.05) / (light.min() + 0.05)
        assertTrue(contrast >= least, "$text on $behind has a contrast of $contrast")
    }

    private fun colors(theme: String): Map<String, Int> {
        val file = File("src/main/res/$theme/colors.xml")
        val document = DocumentBuilderFactory.newInstance().newDocumentBuilder().parse(file)
        val elements = document.getElementsByTagName("color")
        return (0 until elements.length).map(elements::item).associate {
            it.attributes.getNamedItem("name").nodeValue to it.textContent.removePrefix("#").toInt(16)
        }
    }

    private fun luminance(color: Int): Double {
        val (red, green, blue) = listOf(16, 8, 0).map { shift ->
            val share = (color shr shift and 255) / 255.0
            if (share <= 0.04045) share / 12.92 else ((share + 0.055) / 1.055).pow(2.4)
        }
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue
    }
}
