package org.omnidraft.demo

import android.widget.TextView
import org.junit.Assert.assertEquals
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config

@RunWith(RobolectricTestRunner::class)
@Config(sdk = [28, 35])
class MainActivityTest {
    @Test
    fun `it starts and rotates`() {
        Robolectric.buildActivity(MainActivity::class.java).use { controller ->
            controller.setup()
            controller.recreate()
            val title = controller.get().findViewById<TextView>(R.id.title)
            assertEquals("OmniDraft", title.text.toString())
        }
    }
}
