package org.omnidraft.engine.core

import java.nio.file.Path

/** Which n-gram goes first where a cache is full. */
enum class Eviction {
    /** The one that was used longest ago. */
    LRU,

    /** The one that was used least often. */
    LFU,
}

/**
 * What an n-gram cache may take.
 *
 * @param maxEntries n-grams.
 * @param maxBytes of memory; two bits for each token of the drafter are always taken.
 */
data class CacheLimits(
    val maxEntries: Long = 65536,
    val maxBytes: Long = 4L shl 20,
    val eviction: Eviction = Eviction.LRU,
) {
    init {
        require(maxEntries >= 0 && maxBytes >= 0) { "limits of a cache are 0 or more" }
    }
}

/**
 * Target tokens that no draft token stands for, and the draft tokens that spell them. Generations
 * fill it and draft by it: keep it from answer to answer, and save it. It belongs to one pair of
 * vocabularies, and serves one generation at a time.
 */
class NgramCache private constructor(pair: VocabularyPair, make: (pair: Long) -> Long) :
    Handle(emptyList(), Native::cacheFree) {
    init {
        holds(pair.withAddress(make))
    }

    /** An empty one. */
    constructor(pair: VocabularyPair, limits: CacheLimits = CacheLimits()) : this(
        pair,
        { Native.cacheNew(it, limits.maxEntries, limits.maxBytes, limits.eviction.ordinal) },
    )

    /** Number of n-grams. */
    val size: Int get() = withAddress(Native::cacheSize).toInt()

    /** Bytes that all its structures take. */
    val memoryBytes: Long get() = withAddress(Native::cacheMemory)

    /**
     * Show it draft tokens that spell a target token; not during a round of a generation.
     *
     * @return whether this is a new n-gram; it is none where it is known, or cannot be one of this
     *   pair.
     * @throws CoreException a token is outside its vocabulary.
     */
    fun observe(target: Int, drafts: IntArray): Boolean =
        withAddress { Native.cacheObserve(it, target, drafts) }

    /** The n-grams with a checksum. */
    fun toBytes(): ByteArray = withAddress(Native::cacheToBytes)

    /**
     * Write [toBytes] to a file, which is replaced as a whole.
     *
     * @throws CoreException the file cannot be written; what it held before stays.
     */
    fun save(path: Path) = withAddress { Native.cacheSave(it, path.terminated()) }

    companion object {
        /**
         * What [toBytes] gave.
         *
         * @throws CoreException the bytes are damaged, or of other vocabularies.
         */
        fun fromBytes(bytes: ByteArray, pair: VocabularyPair, limits: CacheLimits = CacheLimits()) =
            NgramCache(pair) {
                Native.cacheFromBytes(
                    bytes, it, limits.maxEntries, limits.maxBytes, limits.eviction.ordinal
                )
            }

        /**
         * What [save] wrote.
         *
         * @throws CoreException the file is missing or damaged, or of other vocabularies.
         */
        fun load(path: Path, pair: VocabularyPair, limits: CacheLimits = CacheLimits()) =
            NgramCache(pair) {
                Native.cacheLoad(
                    path.terminated(), it, limits.maxEntries, limits.maxBytes,
                    limits.eviction.ordinal,
                )
            }

        private fun Path.terminated() = toString().encodeToByteArray()
    }
}
