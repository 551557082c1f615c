package org.omnidraft.engine.learning

import java.util.concurrent.TimeUnit
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.thread
import kotlin.concurrent.withLock

/** Items that may wait for the thread. */
internal const val QUEUE = 64

/** Of the thread: on Android niceness 10, about a tenth of a core beside the threads that answer. */
private const val LOW_PRIORITY = 4

/**
 * Works on items, on a thread of its own or whenever it is given one.
 *
 * A subclass says what to do with an item ([work]), and does the computing by [compute]. What both
 * threads see is read and changed under [lock].
 *
 * @param budget at most this share of the time is computed, 0 < budget ≤ 1.
 */
abstract class Worker<T>(private val budget: Double) : AutoCloseable {
    protected val lock = ReentrantLock()
    private val changed = lock.newCondition()
    private val queue = ArrayDeque<T>()
    private var worker: Thread? = null
    private var running: Stop? = null // of the piece of work that runs
    private var error: Throwable? = null
    private var busy = false
    private var paused = false
    private var closing = false

    /** Do what an item asks for. */
    protected abstract fun work(item: T)

    /** A piece of work has taken so long; called with the lock held. */
    protected abstract fun spent(seconds: Double)

    // --- from the thread that answers -----------------------------------------------------------

    /** Work on a thread from now on. */
    protected fun start() {
        worker = thread(name = "omnidraft-learn", isDaemon = true, priority = LOW_PRIORITY) { loop() }
    }

    /**
     * Work on an item, now or soon; after [close] no more.
     *
     * @return whether the item that has waited longest was dropped to make room.
     * @throws Throwable whatever ended the thread.
     */
    protected fun put(item: T): Boolean {
        lock.withLock {
            error?.let { throw it }
            if (closing) return false
            if (worker != null) {
                val full = queue.size >= QUEUE
                if (full) queue.removeFirst()
                queue.addLast(item)
                changed.signalAll()
                return full
            }
        }
        work(item)
        return false
    }

    /** Compute nothing until [resume]: a prompt is being read. What runs begins anew. */
    fun pause() {
        lock.withLock {
            paused = true
            running?.now()
        }
    }

    /** Go on after [pause]. */
    fun resume() = lock.withLock {
        paused = false
        changed.signalAll()
    }

    /** How many items are still to be done. */
    val waiting: Int get() = lock.withLock { queue.size + if (busy) 1 else 0 }

    /**
     * Wait until everything that was put has been done, at most [seconds].
     *
     * @throws Throwable whatever ended the thread.
     */
    fun drain(seconds: Double = Double.POSITIVE_INFINITY) = lock.withLock {
        var left = (seconds * 1e9).toLong()
        while (error == null && !closing && (busy || queue.isNotEmpty()) && left > 0) {
            left = changed.awaitNanos(left)
        }
        error?.let { throw it }
        Unit
    }

    /** End the thread; what has not been done yet is forgotten. */
    override fun close() {
        lock.withLock {
            closing = true
            running?.now()
            changed.signalAll()
        }
        worker?.join()
    }

    // --- working --------------------------------------------------------------------------------

    /**
     * Run a piece of work when that is allowed, and rest afterwards as the budget demands.
     *
     * @param call may run twice: what it is given ends it with an exception.
     */
    protected fun <R> compute(call: (Stop) -> R): R {
        while (true) {
            val stop = Stop()
            lock.withLock {
                while (paused && !closing) changed.await()
                if (closing) throw ClosedException()
                running = stop
            }
            val started = System.nanoTime()
            val result = try {
                call(stop)
            } catch (error: Exception) {
                if (stop.told) continue
                throw error
            } finally {
                lock.withLock {
                    running = null
                    spent((System.nanoTime() - started) / 1e9)
                }
            }
            if (budget < 1) rest((System.nanoTime() - started) * (1 / budget - 1))
            return result
        }
    }

    private fun rest(nanoseconds: Double) = lock.withLock {
        var left = nanoseconds.toLong()
        while (left > 0 && !closing) left = changed.awaitNanos(left)
    }

    private fun loop() {
        try {
            while (true) work(next() ?: return)
        } catch (_: ClosedException) {
            return
        } catch (fatal: Throwable) {
            lock.withLock {
                error = fatal
                changed.signalAll()
            }
        }
    }

    /** The next item, the one before being done; null when it is time to end. */
    private fun next(): T? = lock.withLock {
        busy = false
        changed.signalAll()
        while (queue.isEmpty() && !closing) changed.await()
        if (closing) return null
        busy = true
        queue.removeFirst()
    }

    /** It was closed while it computed. */
    private class ClosedException : RuntimeException()
}
