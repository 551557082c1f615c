package org.omnidraft.demo.ui

import android.content.Context
import java.util.Locale
import kotlin.math.roundToInt
import org.omnidraft.demo.R
import org.omnidraft.demo.chat.ChatState
import org.omnidraft.demo.chat.Ending
import org.omnidraft.demo.chat.Notice
import org.omnidraft.demo.chat.Phase
import org.omnidraft.demo.chat.Statistics
import org.omnidraft.demo.models.LibraryNotice

/** What the chat is doing, in a sentence: it is read out when it changes. */
fun Context.phaseText(state: ChatState): String = when (val phase = state.phase) {
    Phase.NoModel -> getString(R.string.phase_no_model)
    Phase.Opening -> getString(R.string.phase_opening, state.choice?.target.orEmpty())
    Phase.Answering -> getString(R.string.phase_answering)
    Phase.Resting -> getString(R.string.phase_resting)
    is Phase.Failed -> phase.message
    Phase.Ready -> readyText(state)
}

private fun Context.readyText(state: ChatState): String {
    val last = state.turns.lastOrNull()
    return when (last?.ending) {
        null, Ending.OPEN -> getString(R.string.phase_ready)
        Ending.COMPLETE -> {
            val tokens = last.pieces.size
            resources.getQuantityString(R.plurals.phase_complete, tokens, tokens)
        }
        Ending.STOPPED -> getString(R.string.phase_stopped)
        Ending.FAILED -> getString(R.string.phase_failed)
    }
}

fun Context.noticeText(notice: Notice): String = when (notice) {
    Notice.AdapterSaved -> getString(R.string.notice_adapter_saved)
    Notice.ConversationDamaged -> getString(R.string.notice_conversation_damaged)
    is Notice.Problem -> notice.message
}

fun Context.noticeText(notice: LibraryNotice): String = when (notice) {
    is LibraryNotice.Imported -> getString(R.string.notice_imported, notice.name)
    is LibraryNotice.CleanedUp ->
        getString(R.string.notice_cleaned_up, notice.names.joinToString())
    is LibraryNotice.Cancelled -> getString(R.string.notice_cancelled, notice.name)
    is LibraryNotice.Problem -> notice.message
}

/** Tokens per second with and without the drafter. */
fun Context.speedText(statistics: Statistics): String =
    getString(R.string.speed, rate(statistics.tokensPerSecond), rate(statistics.plainTokensPerSecond))

private fun Context.rate(tokensPerSecond: Double?) =
    tokensPerSecond?.let { String.format(Locale.getDefault(), "%.1f", it) }
        ?: getString(R.string.not_measured)

/** The figures that change slowly. */
fun Context.figuresText(statistics: Statistics): String {
    val share = if (statistics.proposed == 0) {
        getString(R.string.not_measured)
    } else {
        percent(statistics.accepted.toDouble() / statistics.proposed)
    }
    return getString(
        R.string.figures,
        share,
        statistics.accepted,
        statistics.proposed,
        megabytes(statistics.memoryBytes),
        statistics.ngrams,
        statistics.learningSteps,
    )
}

/** A share from 0 to 1, as a percentage. */
fun percent(share: Double): String =
    String.format(Locale.getDefault(), "%d %%", (share * 100).roundToInt())

fun Context.megabytes(bytes: Long): String = getString(R.string.megabytes, bytes / 1_000_000)
