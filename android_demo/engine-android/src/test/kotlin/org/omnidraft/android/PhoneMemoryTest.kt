package org.omnidraft.android

import android.app.ActivityManager
import android.app.Application
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config

@RunWith(RobolectricTestRunner::class)
@Config(application = Application::class)
class PhoneMemoryTest {
    private val context get() = RuntimeEnvironment.getApplication()

    private fun free(bytes: Long, threshold: Long) {
        val info = ActivityManager.MemoryInfo().also {
            it.availMem = bytes
            it.threshold = threshold
        }
        shadowOf(context.getSystemService(ActivityManager::class.java)).setMemoryInfo(info)
    }

    @Test
    fun `the limit leaves what the system needs`() {
        free(3_000, threshold = 1_000)
        assertEquals(2_000L, PhoneMemory.limit(context))
        free(500, threshold = 1_000)
        assertEquals(0L, PhoneMemory.limit(context))
    }

    @Test
    fun `caches lie beyond the heap`() {
        val buffer = PhoneMemory.shared.reserve(1 shl 20)
        assertTrue(buffer.isDirect)
        assertEquals(1 shl 20, buffer.capacity())
        buffer.putInt(0, 7)
        assertEquals(7, buffer.getInt(0))
    }
}
