package org.omnidraft.engine.models

import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.omnidraft.engine.NotEnoughMemoryException
import org.omnidraft.engine.window

/**
 * Where the memory of KV caches comes from.
 *
 * Reserved memory should be handed out only as it is written: a cache is reserved for the longest
 * text and mostly holds a short one. On Android direct buffers lie on Java's heap, which is small,
 * so the app gives memory from beyond it: `SharedMemory.create(null, size).mapReadWrite()`.
 */
fun interface CacheMemory {
    /**
     * A direct buffer of [bytes] zero bytes that lives as long as it is referenced.
     *
     * @throws OutOfMemoryError there is not so much.
     */
    fun reserve(bytes: Int): ByteBuffer

    companion object {
        /** The JVM's direct buffers, whose bound is `-XX:MaxDirectMemorySize`. */
        val direct = CacheMemory { ByteBuffer.allocateDirect(it) }
    }
}

// A buffer's size is an Int, and a system maps whole pages: caches are put together up to this.
private const val LARGEST_RESERVE = 1L shl 30

/**
 * Buffers of one size each.
 *
 * @param tokens of what length, for the error.
 * @throws NotEnoughMemoryException the system does not even reserve so much.
 */
internal fun CacheMemory.buffers(count: Int, bytes: Long, tokens: Int): List<ByteBuffer> {
    try {
        if (bytes > Int.MAX_VALUE) throw OutOfMemoryError("one buffer of $bytes bytes")
        val together = (LARGEST_RESERVE / bytes).coerceIn(1, count.toLong()).toInt()
        return (0 until count).chunked(together).flatMap { chunk ->
            val all = reserve((chunk.size * bytes).toInt())
            chunk.indices.map { all.part(it * bytes, bytes) }
        }
    } catch (error: OutOfMemoryError) {
        throw NotEnoughMemoryException(
            "The system reserves no ${megabytes(count * bytes)} for the keys and values of " +
                "$tokens tokens. Choose a shorter context, or free memory.",
            error,
        )
    }
}

/** The bytes from [start] on, in the machine's order. */
internal fun ByteBuffer.part(start: Long, bytes: Long): ByteBuffer =
    duplicate().window(start.toInt(), (start + bytes).toInt()).slice().order(ByteOrder.nativeOrder())

internal fun directBytes(bytes: Int): ByteBuffer =
    ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder())

internal fun megabytes(bytes: Long) = "${(bytes + 999_999) / 1_000_000} MB"
