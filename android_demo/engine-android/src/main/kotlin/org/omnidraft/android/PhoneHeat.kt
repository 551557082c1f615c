package org.omnidraft.android

import android.content.Context
import android.os.Build
import android.os.PowerManager
import org.omnidraft.engine.Heat

/**
 * How hot the phone says it is, for [org.omnidraft.engine.EngineOptions.heat].
 *
 * Phones with Android 9 do not say, and count as cool.
 */
class PhoneHeat(context: Context) : () -> Heat, AutoCloseable {
    private val power = context.getSystemService(PowerManager::class.java)

    @Volatile
    private var heat = Heat.COOL

    // Its type is as new as what it is for.
    private val listener: Any? = if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.Q) {
        PowerManager.OnThermalStatusChangedListener { heat = heatOf(it) }
            .also { power.addThermalStatusListener(it) }
    } else {
        null
    }

    override fun invoke(): Heat = heat

    /** Listens no longer. */
    override fun close() {
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.Q) {
            power.removeThermalStatusListener(listener as PowerManager.OnThermalStatusChangedListener)
        }
    }

    private fun heatOf(status: Int) = when {
        status >= PowerManager.THERMAL_STATUS_SEVERE -> Heat.HOT
        status >= PowerManager.THERMAL_STATUS_MODERATE -> Heat.WARM
        else -> Heat.COOL
    }
}
