package org.omnidraft.android

import android.app.Application
import android.os.PowerManager
import org.junit.Assert.assertEquals
import org.junit.Test
import org.junit.runner.RunWith
import org.omnidraft.engine.Heat
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config

@RunWith(RobolectricTestRunner::class)
@Config(application = Application::class)
class PhoneHeatTest {
    private val context get() = RuntimeEnvironment.getApplication()
    private val power get() = shadowOf(context.getSystemService(PowerManager::class.java))

    @Test
    @Config(sdk = [35])
    fun `it follows the phone`() {
        val heat = PhoneHeat(context)
        val seen = (PowerManager.THERMAL_STATUS_NONE..PowerManager.THERMAL_STATUS_SHUTDOWN).map {
            power.setCurrentThermalStatus(it)
            heat()
        }
        val expected = listOf(Heat.COOL, Heat.COOL, Heat.WARM, Heat.HOT, Heat.HOT, Heat.HOT, Heat.HOT)
        assertEquals(expected, seen)
        heat.close()
        power.setCurrentThermalStatus(PowerManager.THERMAL_STATUS_NONE)
        assertEquals(Heat.HOT, heat())
    }

    @Test
    @Config(sdk = [28])
    fun `a phone that does not say counts as cool`() {
        PhoneHeat(context).use { assertEquals(Heat.COOL, it()) }
    }
}
