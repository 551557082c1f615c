package org.omnidraft.demo.ui

import android.content.Context
import android.text.SpannableStringBuilder
import android.text.Spanned
import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.ScrollView
import android.widget.TextView
import org.omnidraft.demo.R
import org.omnidraft.demo.chat.Ending
import org.omnidraft.demo.chat.Origin
import org.omnidraft.demo.chat.Piece
import org.omnidraft.demo.chat.Role
import org.omnidraft.demo.chat.Turn

/** Shows a conversation in [turns], within [scroll]; an answer grows without being drawn anew. */
class Transcript(private val scroll: ScrollView, private val turns: ViewGroup) {
    private val styles = originStyles(scroll.context)
    private val shown = mutableListOf<ShownTurn>()

    /** Shows these turns in the place of those that were shown. */
    fun show(conversation: List<Turn>) {
        val atEnd = !scroll.canScrollVertically(1)
        while (shown.size > conversation.size) {
            turns.removeView(shown.removeAt(shown.lastIndex).view)
        }
        var changed = false
        conversation.forEachIndexed { index, turn ->
            if (index == shown.size) shown += ShownTurn(turns, styles)
            changed = shown[index].show(turn) || changed
        }
        if (changed && atEnd) scroll.post { scroll.scrollTo(0, turns.height) }
    }
}

private class ShownTurn(parent: ViewGroup, private val styles: Map<Origin, OriginStyle>) {
    val view: View = LayoutInflater.from(parent.context).inflate(R.layout.turn, parent, false)
    private val speaker = view.findViewById<TextView>(R.id.speaker)
    private val said = view.findViewById<TextView>(R.id.said)
    private var turn: Turn? = null

    init {
        parent.addView(view)
    }

    /** Returns whether anything changed. */
    fun show(news: Turn): Boolean {
        val before = turn
        if (news === before) return false
        turn = news
        speaker.setText(label(news))
        val question = news.role == Role.USER
        view.setBackgroundColor(if (question) view.context.getColor(R.color.question_background) else 0)
        if (before == null || !continues(before, news)) {
            said.setText("", TextView.BufferType.EDITABLE)
            append(news.pieces, question)
        } else {
            append(news.pieces.drop(before.pieces.size), question)
        }
        return true
    }

    private fun continues(before: Turn, news: Turn) = before.role == news.role &&
        before.pieces.size <= news.pieces.size &&
        before.pieces.firstOrNull().let { it == null || it === news.pieces.first() }

    private fun append(pieces: List<Piece>, plain: Boolean) {
        if (pieces.isEmpty()) return
        val text = SpannableStringBuilder()
        for (piece in pieces) {
            if (plain) text.append(piece.text) else text.append(piece, styles)
        }
        said.append(text)
    }

    private fun label(turn: Turn) = when {
        turn.role == Role.USER -> R.string.you
        turn.ending == Ending.STOPPED -> R.string.answer_stopped
        turn.ending == Ending.FAILED -> R.string.answer_failed
        else -> R.string.answer
    }
}

/** Appends a token's text with its mark. */
private fun SpannableStringBuilder.append(piece: Piece, styles: Map<Origin, OriginStyle>) {
    if (piece.text.isEmpty()) return
    val span = OriginSpan(styles.getValue(piece.origin))
    append(piece.text, span, Spanned.SPAN_EXCLUSIVE_EXCLUSIVE)
}

/** The marks of origins, with what they mean. */
fun legend(context: Context): CharSequence {
    val styles = originStyles(context)
    val text = SpannableStringBuilder(context.getString(R.string.legend_title))
    val meanings = mapOf(
        Origin.DIRECT to R.string.legend_direct,
        Origin.MERGED to R.string.legend_merged,
        Origin.LOOKUP to R.string.legend_lookup,
        Origin.CORRECTED to R.string.legend_corrected,
        Origin.FREE to R.string.legend_free,
    )
    for ((origin, meaning) in meanings) {
        text.append("  ")
        text.append(Piece(context.getString(meaning), origin), styles)
    }
    return text
}

/** Sets a text that differs from the present one: each setting of a live region is read out. */
fun TextView.setTextIfNew(news: CharSequence?) {
    visibility = if (news == null) View.GONE else View.VISIBLE
    if (news != null && !news.contentEquals(text)) text = news
}
