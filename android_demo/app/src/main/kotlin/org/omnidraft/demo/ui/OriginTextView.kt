package org.omnidraft.demo.ui

import android.content.Context
import android.graphics.Canvas
import android.graphics.DashPathEffect
import android.graphics.Paint
import android.graphics.Rect
import android.text.Layout
import android.text.Spanned
import android.util.AttributeSet
import android.widget.TextView

/** A text view that underlines each [OriginSpan] in its own way, in the lines that are seen. */
class OriginTextView @JvmOverloads constructor(context: Context, attributes: AttributeSet? = null) :
    TextView(context, attributes) {
    private val unit = resources.displayMetrics.density
    private val pen = Paint(Paint.ANTI_ALIAS_FLAG).apply {
        style = Paint.Style.STROKE
        strokeWidth = 1.5f * unit
    }
    private val dashes = DashPathEffect(floatArrayOf(6 * unit, 3 * unit), 0f)
    private val dots = DashPathEffect(floatArrayOf(1.5f * unit, 2.5f * unit), 0f)
    private val seen = Rect()

    override fun onDraw(canvas: Canvas) {
        super.onDraw(canvas)
        val content = text as? Spanned ?: return
        val layout = layout ?: return
        if (!canvas.getClipBounds(seen)) return
        canvas.save()
        canvas.translate(totalPaddingLeft.toFloat(), totalPaddingTop.toFloat())
        val first = layout.getLineForVertical(seen.top - totalPaddingTop)
        val last = layout.getLineForVertical(seen.bottom - totalPaddingTop)
        for (line in first..last) drawLine(canvas, content, layout, line)
        canvas.restore()
    }

    private fun drawLine(canvas: Canvas, content: Spanned, layout: Layout, line: Int) {
        val from = layout.getLineStart(line)
        val to = layout.getLineVisibleEnd(line)
        for (span in content.getSpans(from, to, OriginSpan::class.java)) {
            val start = maxOf(content.getSpanStart(span), from)
            val end = minOf(content.getSpanEnd(span), to)
            if (start >= end) continue
            val ends = floatArrayOf(
                layout.getPrimaryHorizontal(start),
                // What follows a line's last character is in the next line.
                if (end == to) lineEnd(layout, line) else layout.getPrimaryHorizontal(end),
            ).sortedArray()
            val gap = minOf(unit, (ends[1] - ends[0]) / 4)
            val y = layout.getLineBaseline(line) + 3 * unit
            underline(canvas, span.style, ends[0] + gap, ends[1] - gap, y)
        }
    }

    private fun lineEnd(layout: Layout, line: Int) =
        if (layout.getParagraphDirection(line) == Layout.DIR_LEFT_TO_RIGHT) {
            layout.getLineRight(line)
        } else {
            layout.getLineLeft(line)
        }

    private fun underline(
        canvas: Canvas,
        style: OriginStyle,
        left: Float,
        right: Float,
        y: Float,
    ) {
        pen.color = style.color
        pen.pathEffect = when (style.underline) {
            Underline.DASHED -> dashes
            Underline.DOTTED -> dots
            else -> null
        }
        if (style.underline != Underline.NONE) canvas.drawLine(left, y, right, y, pen)
        if (style.underline == Underline.DOUBLE) {
            canvas.drawLine(left, y + 3 * unit, right, y + 3 * unit, pen)
        }
    }
}
