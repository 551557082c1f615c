package org.omnidraft.engine.core

import java.util.concurrent.atomic.AtomicLong
import java.util.concurrent.locks.ReentrantLock
import org.omnidraft.engine.OmniDraftException

/** The core refused a call. The message says what was wrong. */
class CoreException(val status: CoreStatus, message: String) : OmniDraftException(message)

/**
 * Something of the native core, which takes memory until it is closed.
 *
 * It may be used by several threads, which wait for each other, also where they use handles that
 * share something. Handles may be closed in any order: what one rests on stays as long as it is
 * needed. A closed one refuses every call with an [IllegalStateException].
 *
 * @param restsOn handles that change when this one is used.
 */
abstract class Handle internal constructor(
    private val restsOn: List<Handle>,
    private val free: (Long) -> Unit,
) : AutoCloseable {
    private val number = numbers.getAndIncrement()
    private val lock = ReentrantLock()
    private var address = 0L

    /** Set by the constructor of a class, once. */
    internal fun holds(address: Long) {
        this.address = address
    }

    /** Give its memory back. Closing it again does nothing. */
    override fun close() {
        lock.lock()
        try {
            val held = address
            address = 0L
            if (held != 0L) free(held)
        } finally {
            lock.unlock()
        }
    }

    internal fun <T> withAddress(work: (address: Long) -> T): T = withAddresses(listOf(this)) { work(it[0]) }

    // Handles that change when this one is used, and itself.
    private fun changing(): List<Handle> = restsOn.flatMap { it.changing() } + this

    internal companion object {
        private val numbers = AtomicLong()

        /**
         * Do what needs these handles, as no other thread uses them or what they rest on.
         *
         * @throws IllegalStateException one of them is closed.
         */
        fun <T> withAddresses(handles: List<Handle>, work: (addresses: List<Long>) -> T): T {
            // Always in one order, so that no two threads wait for each other.
            val locks = handles.flatMap { it.changing() }.distinct().sortedBy { it.number }
            locks.forEach { it.lock.lock() }
            try {
                handles.forEach {
                    check(it.address != 0L) { "this ${it.javaClass.simpleName} has been closed" }
                }
                return work(handles.map { it.address })
            } finally {
                locks.forEach { it.lock.unlock() }
            }
        }
    }
}
