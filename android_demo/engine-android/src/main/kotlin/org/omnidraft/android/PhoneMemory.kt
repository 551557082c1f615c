package org.omnidraft.android

import android.app.ActivityManager
import android.content.Context
import android.os.SharedMemory
import android.system.ErrnoException
import org.omnidraft.engine.models.CacheMemory

/** The phone's memory, for [org.omnidraft.engine.EngineOptions]. */
object PhoneMemory {
    /** Bytes that models may take now without the system ending other apps, or this one. */
    fun limit(context: Context): Long {
        val info = ActivityManager.MemoryInfo()
        context.getSystemService(ActivityManager::class.java).getMemoryInfo(info)
        return maxOf(0, info.availMem - info.threshold)
    }

    /** Memory beyond Java's heap, which is small on a phone; it is taken as it is written. */
    val shared = CacheMemory { bytes ->
        try {
            // A mapping outlives its file descriptor.
            SharedMemory.create(null, bytes).use { it.mapReadWrite() }
        } catch (error: ErrnoException) {
            throw OutOfMemoryError("$bytes bytes of shared memory: ${error.message}")
        }
    }
}
