package org.omnidraft.engine

import java.nio.Buffer

/**
 * Let a buffer hold what lies between two places; returns it.
 *
 * Its methods are called as [Buffer]'s: those that return the buffer's own type are newer than the
 * oldest Android that the engine runs on.
 */
internal fun <T : Buffer> T.window(start: Int, end: Int): T {
    clear()
    limit(end)
    position(start)
    return this
}
