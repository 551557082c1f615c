package org.omnidraft.demo.ui

import android.content.Context
import android.text.TextPaint
import android.text.style.CharacterStyle
import org.omnidraft.demo.R
import org.omnidraft.demo.chat.Origin

/** How a token's text is underlined, so that its origin does not rest on colour alone. */
enum class Underline { NONE, SOLID, DOUBLE, DASHED, DOTTED }

/** The colour and the underline of an origin. */
class OriginStyle(val color: Int, val underline: Underline)

/** Marks a token's text with its origin. [OriginTextView] draws the underline. */
class OriginSpan(val style: OriginStyle) : CharacterStyle() {
    override fun updateDrawState(paint: TextPaint) {
        paint.color = style.color
    }
}

/** The style of each origin in the present theme. */
fun originStyles(context: Context): Map<Origin, OriginStyle> = Origin.entries.associateWith {
    OriginStyle(context.getColor(it.color), it.underline)
}

private val Origin.color: Int
    get() = when (this) {
        Origin.DIRECT -> R.color.origin_direct
        Origin.MERGED -> R.color.origin_merged
        Origin.CORRECTED -> R.color.origin_corrected
        Origin.FREE -> R.color.origin_free
        Origin.LOOKUP -> R.color.origin_lookup
    }

private val Origin.underline: Underline
    get() = when (this) {
        Origin.DIRECT -> Underline.SOLID
        Origin.MERGED -> Underline.DOUBLE
        Origin.CORRECTED -> Underline.DASHED
        Origin.FREE -> Underline.NONE
        Origin.LOOKUP -> Underline.DOTTED
    }
