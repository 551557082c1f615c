package org.omnidraft.demo

import android.app.Activity
import android.graphics.Bitmap
import android.graphics.Canvas
import android.os.Build
import android.widget.TextView
import java.io.File
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.omnidraft.demo.chat.Origin
import org.omnidraft.demo.chat.Statistics
import org.omnidraft.demo.models.Kind
import org.omnidraft.demo.ui.originStyles
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config

/** Pictures of the screens, in `target/pictures`: to be looked at. */
@RunWith(RobolectricTestRunner::class)
class PicturesTest {
    private val app get() = RuntimeEnvironment.getApplication() as TestApplication

    private inline fun <reified A : Activity> shown(): Activity =
        Robolectric.buildActivity(A::class.java).setup().visible().get().also { idle() }

    /** Draws a screen into the file [name], and returns its pixels. */
    private fun picture(activity: Activity, name: String): IntArray {
        layOut(activity)
        idle()
        val root = activity.window.decorView
        val picture = Bitmap.createBitmap(root.width, root.height, Bitmap.Config.ARGB_8888)
        root.draw(Canvas(picture))
        val file = File("target/pictures/$name-android-api-${Build.VERSION.SDK_INT}.png")
        file.parentFile!!.mkdirs()
        file.outputStream().use { picture.compress(Bitmap.CompressFormat.PNG, 100, it) }
        return IntArray(root.width * root.height).also {
            picture.getPixels(it, 0, root.width, 0, 0, root.width, root.height)
        }
    }

    private fun chat(name: String) {
        app.openModels()
        val activity = shown<MainActivity>()
        app.chat.send("Why is the sky blue? And why is it red when the sun goes down?")
        idle()
        for ((i, word) in ANSWER.split(" ").withIndex()) {
            app.opener.last.say("$word ", Origin.entries[i * 7 / 3 % Origin.entries.size])
        }
        app.opener.last.end()
        app.opener.last.statistics.value = FIGURES
        idle()
        val pixels = picture(activity, name)
        val colors = pixels.toSet()
        val styles = originStyles(activity)
        assertEquals(emptySet<Origin>(), styles.filterValues { it.color !in colors }.keys)
        val background = activity.getColor(R.color.background)
        assertTrue(pixels.count { it == background } > pixels.size / 4)
    }

    @Test
    @Config(qualifiers = "w411dp-h891dp-xhdpi")
    fun `the chat`() = chat("chat")

    @Test
    @Config(qualifiers = "w411dp-h891dp-night-xhdpi")
    fun `the chat at night`() = chat("chat-night")

    @Test
    @Config(qualifiers = "w891dp-h411dp-land-xhdpi")
    fun `the chat in landscape`() = chat("chat-land")

    @Test
    @Config(qualifiers = "w360dp-h640dp-xhdpi", fontScale = 2.0f)
    fun `the chat with large text`() = chat("chat-large")

    @Test
    @Config(qualifiers = "w411dp-h891dp-xhdpi")
    fun `the models`() = models("models")

    @Test
    @Config(qualifiers = "w411dp-h891dp-night-xhdpi")
    fun `the models at night`() = models("models-night")

    @Test
    @Config(qualifiers = "w360dp-h640dp-xhdpi", fontScale = 2.0f)
    fun `the models with large text`() = models("models-large")

    private fun models(name: String) {
        app.store("smollm2-135m", Kind.MODEL)
        app.store("drafter", Kind.BUNDLE)
        app.library.start()
        await("the models are listed") { app.library.state.value.models.size == 2 }
        val activity = shown<ModelsActivity>()
        val pixels = picture(activity, name)
        val background = activity.getColor(R.color.background)
        assertTrue(pixels.count { it == background } > pixels.size / 4)
        assertTrue(activity.findViewById<TextView>(R.id.open).run { isEnabled && width > 0 })
        assertTrue(activity.getColor(R.color.text) in pixels.toSet())
    }

    private companion object {
        const val ANSWER = "The sky is blue because the air scatters light. Blue light has short waves, " +
            "and is scattered more than red light, whose waves are longer. In the evening light " +
            "comes a long way through the air, and what is left of it is red."
        val FIGURES = Statistics(
            tokens = 51,
            rounds = 24,
            accepted = 31,
            proposed = 44,
            tokensPerSecond = 21.25,
            plainTokensPerSecond = 12.0,
            acceptance = List(24) { listOf(1.0, 0.75, 0.5, 0.25)[it * it % 4] },
            ngrams = 7,
            memoryBytes = 183_000_000,
        )
    }
}
