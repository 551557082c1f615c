package org.omnidraft.demo.ui

import android.content.Context
import android.graphics.Canvas
import android.graphics.Paint
import android.util.AttributeSet
import android.view.View
import org.omnidraft.demo.R
import org.omnidraft.demo.chat.averages

/** The share of proposed tokens that were accepted, over time: a bar for each group of rounds. */
class AcceptanceChart @JvmOverloads constructor(
    context: Context,
    attributes: AttributeSet? = null,
) : View(context, attributes) {
    private val unit = resources.displayMetrics.density
    private val bar = Paint(Paint.ANTI_ALIAS_FLAG).apply { color = context.getColor(R.color.chart) }
    private val grid = Paint().apply {
        color = context.getColor(R.color.chart_grid)
        strokeWidth = unit
    }
    private var rounds: List<Double> = emptyList()

    /** Shows the rounds' acceptance, each from 0 to 1, the oldest first. */
    fun show(rounds: List<Double>) {
        if (rounds == this.rounds) return
        this.rounds = rounds
        contentDescription = describe()
        invalidate()
    }

    private fun describe(): String {
        if (rounds.isEmpty()) return context.getString(R.string.chart_empty)
        val recent = rounds.takeLast(RECENT).average()
        return context.getString(
            R.string.chart_description,
            percent(rounds.average()),
            rounds.size,
            percent(recent),
            minOf(RECENT, rounds.size),
        )
    }

    override fun onDraw(canvas: Canvas) {
        super.onDraw(canvas)
        val left = paddingLeft.toFloat()
        val right = (width - paddingRight).toFloat()
        val top = paddingTop.toFloat()
        val bottom = (height - paddingBottom).toFloat()
        for (part in 0..2) {
            val y = top + (bottom - top) * part / 2
            canvas.drawLine(left, y, right, y, grid)
        }
        val most = ((right - left) / (BAR * unit)).toInt()
        averages(rounds, most).forEachIndexed { index, share ->
            val x = left + index * BAR * unit
            val y = bottom - (bottom - top) * share.toFloat()
            canvas.drawRect(x + unit / 2, y, x + BAR * unit - unit / 2, bottom, bar)
        }
    }

    private companion object {
        /** Width of a bar and the gap beside it, in density-independent pixels. */
        const val BAR = 4

        /** Rounds that count as recent. */
        const val RECENT = 32
    }
}
