package org.omnidraft.engine.learning

import org.omnidraft.engine.OmniDraftException

/**
 * Ends a piece of work on another thread, whether that has begun, is about to begin, or is over.
 *
 * One instance serves one piece of work, so that being told too late ends nothing else.
 */
class Stop {
    private val lock = Any()
    private var end: (() -> Unit)? = null

    /** Whether [now] was called. */
    @Volatile
    var told = false
        private set

    /** End the piece of work. */
    fun now() = synchronized(lock) {
        told = true
        end?.invoke()
        Unit
    }

    /**
     * Run what [end] ends; that may be called from another thread until [run] returns.
     *
     * @throws OmniDraftException [now] was called before.
     */
    internal fun <T> ends(end: () -> Unit, run: () -> T): T {
        synchronized(lock) {
            if (told) throw OmniDraftException("It was stopped before it began.")
            this.end = end
        }
        try {
            return run()
        } finally {
            synchronized(lock) { this.end = null }
        }
    }
}
