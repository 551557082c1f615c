package org.omnidraft.demo

import android.app.Activity
import android.content.Intent
import android.os.Bundle
import android.view.Menu
import android.view.MenuItem
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.Switch
import android.widget.TextView
import android.widget.Toolbar
import kotlinx.coroutines.Job
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch
import org.omnidraft.demo.chat.ChatState
import org.omnidraft.demo.chat.Phase
import org.omnidraft.demo.ui.AcceptanceChart
import org.omnidraft.demo.ui.Transcript
import org.omnidraft.demo.ui.figuresText
import org.omnidraft.demo.ui.legend
import org.omnidraft.demo.ui.noticeText
import org.omnidraft.demo.ui.padForSystemBars
import org.omnidraft.demo.ui.phaseText
import org.omnidraft.demo.ui.setTextIfNew
import org.omnidraft.demo.ui.speedText

/** The chat. It only shows the state of [DemoApplication.chat], and passes on what the user does. */
class MainActivity : Activity() {
    private val scope = MainScope()
    private val chat get() = (application as DemoApplication).chat
    private var showing: Job? = null
    private var figuresShown = true

    private val question by lazy { findViewById<EditText>(R.id.question) }
    private val send by lazy { findViewById<Button>(R.id.send) }
    private val draft by lazy { findViewById<Switch>(R.id.draft) }
    private val learn by lazy { findViewById<Switch>(R.id.learn) }
    private val panel by lazy { findViewById<View>(R.id.panel) }
    private val transcript by lazy {
        Transcript(findViewById(R.id.transcript), findViewById(R.id.turns))
    }

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.main)
        setActionBar(findViewById<Toolbar>(R.id.toolbar))
        findViewById<View>(R.id.root).padForSystemBars()
        findViewById<TextView>(R.id.legend).text = legend(this)
        figuresShown = savedInstanceState?.getBoolean(FIGURES_SHOWN) ?: true
        showFigures()
        send.setOnClickListener { sendOrStop() }
        draft.setOnCheckedChangeListener { _, on -> if (on != chat.state.value.draft) chat.setDraft(on) }
        learn.setOnCheckedChangeListener { _, on -> if (on != chat.state.value.learn) chat.setLearn(on) }
    }

    override fun onStart() {
        super.onStart()
        chat.wake()
        showing = scope.launch { chat.state.collect(::show) }
    }

    override fun onStop() {
        showing?.cancel()
        if (!isChangingConfigurations) chat.save()
        super.onStop()
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    override fun onSaveInstanceState(outState: Bundle) {
        super.onSaveInstanceState(outState)
        outState.putBoolean(FIGURES_SHOWN, figuresShown)
    }

    override fun onCreateOptionsMenu(menu: Menu): Boolean {
        menuInflater.inflate(R.menu.main, menu)
        menu.findItem(R.id.show_figures).isChecked = figuresShown
        return true
    }

    override fun onOptionsItemSelected(item: MenuItem): Boolean {
        when (item.itemId) {
            R.id.models -> startActivity(Intent(this, ModelsActivity::class.java))
            R.id.new_conversation -> chat.clear()
            R.id.show_figures -> {
                figuresShown = !figuresShown
                item.isChecked = figuresShown
                showFigures()
            }
            else -> return super.onOptionsItemSelected(item)
        }
        return true
    }

    private fun showFigures() {
        panel.visibility = if (figuresShown) View.VISIBLE else View.GONE
    }

    private fun sendOrStop() {
        if (chat.state.value.phase == Phase.Answering) {
            chat.stop()
        } else if (chat.state.value.canSend && question.text.isNotBlank()) {
            chat.send(question.text.toString())
            question.text.clear()
        }
    }

    private fun show(state: ChatState) {
        findViewById<TextView>(R.id.status).setTextIfNew(phaseText(state))
        findViewById<TextView>(R.id.notice).setTextIfNew(state.notice?.let(::noticeText))
        findViewById<TextView>(R.id.speed).setTextIfNew(speedText(state.statistics))
        findViewById<TextView>(R.id.figures).setTextIfNew(figuresText(state.statistics))
        findViewById<AcceptanceChart>(R.id.acceptance).show(state.statistics.acceptance)
        draft.isChecked = state.draft
        draft.isEnabled = state.canDraft
        learn.isChecked = state.learn
        learn.isEnabled = state.canLearn
        val answering = state.phase == Phase.Answering
        send.setText(if (answering) R.string.stop else R.string.send)
        send.isEnabled = answering || state.canSend
        transcript.show(state.turns)
        takeBack(state.unanswered)
    }

    /** A question that was not answered returns to the input field, unless another is there. */
    private fun takeBack(unanswered: String?) {
        if (unanswered == null) return
        if (question.text.isBlank()) question.setText(unanswered)
        chat.takenBack()
    }

    private companion object {
        const val FIGURES_SHOWN = "figures shown"
    }
}
