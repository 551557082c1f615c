package org.omnidraft.demo

import android.content.ComponentCallbacks2
import android.graphics.Bitmap
import android.graphics.Canvas
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.EditText
import android.widget.Switch
import android.widget.TextView
import java.io.File
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotEquals
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.omnidraft.demo.chat.Origin
import org.omnidraft.demo.chat.Phase
import org.omnidraft.demo.chat.Statistics
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController
import org.robolectric.annotation.Config

@RunWith(RobolectricTestRunner::class)
class MainActivityTest {
    private val app get() = RuntimeEnvironment.getApplication() as TestApplication
    private val assistant get() = app.opener.last
    private lateinit var controller: ActivityController<MainActivity>
    private val activity get() = controller.get()

    private fun start() {
        controller = Robolectric.buildActivity(MainActivity::class.java).setup().visible()
        idle()
    }

    private fun <V : View> view(id: Int): V = activity.findViewById(id)

    private fun text(id: Int) = view<TextView>(id).text.toString()

    private fun ask(question: String) {
        view<EditText>(R.id.question).setText(question)
        view<Button>(R.id.send).performClick()
        idle()
    }

    private fun said() = view<ViewGroup>(R.id.turns).let { turns ->
        (0 until turns.childCount).map {
            turns.getChildAt(it).findViewById<TextView>(R.id.said).text.toString()
        }
    }

    @Test
    fun `without a model it says what to do`() {
        start()
        assertEquals(app.getString(R.string.phase_no_model), text(R.id.status))
        assertFalse(view<Button>(R.id.send).isEnabled)
        assertFalse(view<Switch>(R.id.draft).isEnabled)
    }

    @Test
    fun `an answer streams, and can be stopped`() {
        app.openModels()
        start()
        ask("Why is the sky blue?")
        assertEquals("", text(R.id.question))
        assistant.say("Because", Origin.FREE)
        idle()
        assistant.say(" of", Origin.MERGED)
        idle()
        assertEquals(listOf("Why is the sky blue?", "Because of"), said())
        assertEquals(app.getString(R.string.stop), text(R.id.send))
        view<Button>(R.id.send).performClick()
        idle()
        assertEquals(app.getString(R.string.phase_stopped), text(R.id.status))
        assertEquals(app.getString(R.string.send), text(R.id.send))
    }

    @Test
    fun `only what the chat does is read out, not every token`() {
        app.openModels()
        start()
        ask("Why?")
        assistant.say("Because")
        idle()
        val answer = view<ViewGroup>(R.id.turns).getChildAt(1).findViewById<View>(R.id.said)
        assertEquals(View.ACCESSIBILITY_LIVE_REGION_NONE, answer.accessibilityLiveRegion)
        val status = view<View>(R.id.status)
        assertEquals(View.ACCESSIBILITY_LIVE_REGION_POLITE, status.accessibilityLiveRegion)
        val before = text(R.id.status)
        assistant.say(" it is")
        idle()
        assertEquals(before, text(R.id.status))
        assistant.end()
        idle()
        val complete = app.resources.getQuantityString(R.plurals.phase_complete, 2, 2)
        assertEquals(complete, text(R.id.status))
    }

    @Test
    fun `a rotation changes neither conversation nor answer`() {
        app.openModels()
        start()
        ask("Why?")
        assistant.say("Be")
        idle()
        view<EditText>(R.id.question).setText("And then?")
        RuntimeEnvironment.setQualifiers("+land")
        controller.configurationChange()
        controller.recreate()
        idle()
        assistant.say("cause")
        assistant.end()
        idle()
        assertEquals(listOf("Why?", "Because"), said())
        assertEquals("And then?", text(R.id.question))
        assertEquals(1, app.opener.opened.size)
    }

    @Test
    fun `the next process shows the conversation, and opens the models`() {
        app.openModels()
        start()
        ask("Why?")
        assistant.say("Be")
        idle()
        controller.pause().stop()
        val saved = File(app.filesDir, "chat.json")
        await("the conversation is saved") { saved.exists() && "Be" in saved.readText() }

        val next = TestApplication()
        shadowOf(next).callAttach(app.baseContext)
        next.chat.restore()
        await("the models are open again") { next.chat.state.value.phase == Phase.Ready }
        assertEquals(listOf("Why?", "Be"), next.chat.state.value.turns.map { it.text })
    }

    @Test
    fun `short of memory it saves the adapter, then closes the models, and opens them again`() {
        app.openModels()
        start()
        assistant.learn(steps = 5)
        @Suppress("DEPRECATION")
        app.onTrimMemory(ComponentCallbacks2.TRIM_MEMORY_RUNNING_LOW)
        await("the adapter is saved") { assistant.saved == 1 }
        assertFalse(assistant.closed)
        controller.pause().stop()
        await("the adapter is saved again") { assistant.saved == 2 }
        val first = assistant
        app.onTrimMemory(ComponentCallbacks2.TRIM_MEMORY_BACKGROUND)
        await("the models are closed") { first.closed }
        assertEquals(Phase.Resting, app.chat.state.value.phase)
        assertEquals(3, first.saved)
        controller.restart().resume()
        await("the models are open again") { app.chat.state.value.phase == Phase.Ready }
        assertEquals(2, app.opener.opened.size)
    }

    @Test
    fun `figures are shown, and described where they are drawn`() {
        app.openModels()
        start()
        assistant.statistics.value = Statistics(
            tokens = 10,
            accepted = 3,
            proposed = 4,
            tokensPerSecond = 21.25,
            plainTokensPerSecond = 12.0,
            acceptance = listOf(0.5, 1.0),
            ngrams = 7,
            memoryBytes = 123_000_000,
        )
        idle()
        assertTrue(text(R.id.speed), "21.3" in text(R.id.speed) && "12.0" in text(R.id.speed))
        assertTrue(text(R.id.figures), "75 %" in text(R.id.figures) && "123 MB" in text(R.id.figures))
        val chart = view<View>(R.id.acceptance)
        assertTrue("75 %" in chart.contentDescription)
    }

    @Test
    fun `switches reach the assistant`() {
        app.openModels()
        start()
        view<Switch>(R.id.learn).performClick()
        view<Switch>(R.id.draft).performClick()
        idle()
        assertTrue(assistant.learns)
        ask("Why?")
        assertFalse(assistant.asked.single().second.draft)
    }

    @Test
    fun `learning can be switched where the drafter can learn`() {
        start()
        assertFalse(view<Switch>(R.id.learn).isEnabled)
        for (can in listOf(false, true)) {
            app.opener.canLearn = can
            app.openModels()
            idle()
            assertEquals(can, view<Switch>(R.id.learn).isEnabled)
        }
    }

    @Test
    fun `a question that fails comes back with the reason`() {
        app.openModels()
        start()
        ask("Too long?")
        assistant.fail("The prompt does not fit.")
        idle()
        assertEquals("The prompt does not fit.", text(R.id.notice))
        assertEquals("Too long?", text(R.id.question))
        assertEquals(emptyList<String>(), said())
    }

    @Test
    fun `a new conversation is empty`() {
        app.openModels()
        start()
        ask("Why?")
        assistant.say("Because")
        assistant.end()
        idle()
        assertTrue(shadowOf(activity).clickMenuItem(R.id.new_conversation))
        idle()
        assertEquals(emptyList<String>(), said())
    }

    @Test
    @Config(qualifiers = "w320dp-h480dp", fontScale = 2.0f)
    fun `everything can be touched and has a name, with large text on a small screen`() {
        app.openModels()
        start()
        layOut(activity)
        checkTouchable(view(R.id.root))
        assertNotEquals("", text(R.id.legend))
        assertNotNull(view<View>(R.id.acceptance).contentDescription)
    }

    @Test
    @Config(qualifiers = "xhdpi")
    fun `each origin is drawn in its own way`() {
        app.openModels()
        start()
        val pictures = Origin.entries.map { origin ->
            ask("Why?")
            assistant.say("mmmm", origin)
            assistant.end()
            idle()
            layOut(activity)
            val turns = view<ViewGroup>(R.id.turns)
            val said = turns.getChildAt(turns.childCount - 1).findViewById<View>(R.id.said)
            val picture = Bitmap.createBitmap(said.width, said.height, Bitmap.Config.ARGB_8888)
            said.draw(Canvas(picture))
            val pixels = IntArray(said.width * said.height)
            picture.getPixels(pixels, 0, said.width, 0, 0, said.width, said.height)
            // Colours left out: the shapes alone must differ.
            pixels.map { it ushr 24 > 127 }
        }
        assertEquals(Origin.entries.size, pictures.toSet().size)
    }
}
