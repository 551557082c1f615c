package org.omnidraft.engine.core

import java.nio.FloatBuffer
import org.omnidraft.engine.cannotLoad

/**
 * Where the library of the native core is found: by default, by its name `omnidraft_jni` where the
 * system looks for libraries, as Android does.
 */
object CoreLibrary {
    /** The system property that names the library's file instead. */
    const val PROPERTY = "omnidraft.jni"

    @Volatile
    private var path: String? = null

    /**
     * Load the library from a file, which comes before the system property.
     *
     * @param path absolute.
     * @throws UnsatisfiedLinkError it is no library of this version, or another one is in use. The
     *   process cannot load one any more.
     */
    fun load(path: String) {
        synchronized(this) {
            val used = this.path
            if (used == null) this.path = path
            else if (used != path) {
                throw UnsatisfiedLinkError("another library is in use: ${used.ifEmpty { "by name" }}")
            }
        }
        Native.samplingCheck(0.0, 0, 1.0, 0.0, 1.0)
    }

    /**
     * Load the library now, rather than at the first use.
     *
     * @throws org.omnidraft.engine.OmniDraftException it cannot be loaded.
     */
    fun load() = try {
        Native.samplingCheck(0.0, 0, 1.0, 0.0, 1.0)
    } catch (error: LinkageError) {
        throw cannotLoad("The library of OmniDraft's core", error)
    }

    internal fun find() {
        val named = synchronized(this) {
            val found = path ?: System.getProperty(PROPERTY)
            path = found ?: ""
            found
        }
        if (named != null) System.load(named) else System.loadLibrary("omnidraft_jni")
    }
}

/** Why a call of the core failed: as `omnidraft_status` in omnidraft.h. */
enum class CoreStatus {
    /** A number outside its range, or logits of another shape. */
    INVALID_ARGUMENT,

    /** A token, or an index, outside its vocabulary or array. */
    INVALID_TOKEN,

    /** Logits hold NaN or +inf, or -inf alone. */
    NOT_NUMBERS,

    /** Calls of a generation came in the wrong order. */
    WRONG_ORDER,

    /** Bytes hold no whole n-gram cache. */
    DAMAGED,

    /** An n-gram cache is of other vocabularies, or of a newer format. */
    MISMATCH,

    /** A file could not be read or written. */
    FILE,

    /** A callback broke its contract. What it throws itself comes as it is. */
    CALLBACK,

    /** There is no more memory. */
    NO_MEMORY,

    /** Something else, which the message names. */
    FAILED,
}

/** The native methods, which JNI_OnLoad registers. Addresses are of handles; 0: none. */
internal object Native {
    init {
        CoreLibrary.find()
    }

    /** The exception that a native method throws. */
    @JvmStatic
    fun failure(status: Int, message: ByteArray): Throwable = CoreException(
        CoreStatus.entries.getOrElse(status - 1) { CoreStatus.FAILED }, message.decodeToString()
    )

    @JvmStatic external fun vocabularyNew(
        surfaces: ByteArray, surfaceEnds: IntArray, pieces: ByteArray, pieceEnds: IntArray,
        kinds: ByteArray,
    ): Long
    @JvmStatic external fun vocabularyFree(vocabulary: Long)
    @JvmStatic external fun pairNew(drafter: Long, target: Long, rule: Int): Long
    @JvmStatic external fun pairFree(pair: Long)
    @JvmStatic external fun pairFingerprint(pair: Long): Long
    @JvmStatic external fun pairDirectCount(pair: Long): Long
    @JvmStatic external fun pairToTarget(pair: Long, draft: Int): Int
    @JvmStatic external fun pairToDraft(pair: Long, target: Int): Int

    @JvmStatic external fun cacheNew(pair: Long, maxEntries: Long, maxBytes: Long, eviction: Int): Long
    @JvmStatic external fun cacheFree(cache: Long)
    @JvmStatic external fun cacheSize(cache: Long): Long
    @JvmStatic external fun cacheMemory(cache: Long): Long
    @JvmStatic external fun cacheObserve(cache: Long, target: Int, drafts: IntArray): Boolean
    @JvmStatic external fun cacheToBytes(cache: Long): ByteArray
    @JvmStatic external fun cacheFromBytes(
        bytes: ByteArray, pair: Long, maxEntries: Long, maxBytes: Long, eviction: Int,
    ): Long
    @JvmStatic external fun cacheSave(cache: Long, path: ByteArray)
    @JvmStatic external fun cacheLoad(
        path: ByteArray, pair: Long, maxEntries: Long, maxBytes: Long, eviction: Int,
    ): Long

    @JvmStatic external fun costsNew(
        bands: IntArray, counts: IntArray, sizes: IntArray, seconds: DoubleArray,
    ): Long
    @JvmStatic external fun costsFree(costs: Long)
    @JvmStatic external fun costsBands(costs: Long): IntArray
    @JvmStatic external fun costsSeconds(costs: Long, band: Int, tokens: Int): Double
    @JvmStatic external fun costsMoved(costs: Long): Boolean
    @JvmStatic external fun costsWritten(costs: Long)
    @JvmStatic external fun policyFixed(tokens: Int, confidence: Double): Long
    @JvmStatic external fun policyCostAware(costs: Long): Long
    @JvmStatic external fun policyFree(policy: Long)
    @JvmStatic external fun lookupNew(vocabularySize: Int, maxTokens: Int): Long
    @JvmStatic external fun lookupFree(lookup: Long)

    @JvmStatic external fun spellerNew(
        pair: Long, segment: Segment, specialText: ByteArray, specialTargets: IntArray,
        specialDrafts: IntArray,
    ): Long
    @JvmStatic external fun spellerFree(speller: Long)

    @JvmStatic external fun samplingCheck(
        temperature: Double, topK: Int, topP: Double, minP: Double, repetitionPenalty: Double,
    )
    @JvmStatic external fun generationNew(
        vocabularySize: Int, temperature: Double, topK: Int, topP: Double, minP: Double,
        repetitionPenalty: Double, verification: Int, seed: Long, ends: IntArray, cache: Long,
        speller: Long, policy: Long, lookup: Long, begin: IntArray, tree: Boolean,
        scoresTrees: Boolean, maxLength: Int, held: IntArray,
    ): Long
    @JvmStatic external fun generationFree(generation: Long)
    @JvmStatic external fun generationRead(generation: Long, prompt: IntArray): Int
    @JvmStatic external fun generationBegin(
        generation: Long, room: Int, length: Int, maxLength: Int,
    ): Boolean
    @JvmStatic external fun generationPass(generation: Long): IntArray
    @JvmStatic external fun generationPassNodes(generation: Long): IntArray
    @JvmStatic external fun generationDrafted(
        generation: Long, logits: FloatBuffer, offset: Int, count: Int, seconds: Double,
    )
    @JvmStatic external fun generationConfidence(generation: Long): Double
    @JvmStatic external fun generationDrew(generation: Long): Boolean
    @JvmStatic external fun generationScoreAs(generation: Long, score: Double)
    @JvmStatic external fun generationDraftOn(generation: Long): Boolean
    @JvmStatic external fun generationFail(generation: Long)
    @JvmStatic external fun generationDrafts(generation: Long): Boolean
    @JvmStatic external fun generationScore(generation: Long): IntArray
    @JvmStatic external fun generationScored(
        generation: Long, logits: FloatBuffer, offset: Int, count: Int,
    ): IntArray
    @JvmStatic external fun generationEndAt(generation: Long, end: Int): IntArray
    @JvmStatic external fun generationVerdict(generation: Long): IntArray
    @JvmStatic external fun generationRows(generation: Long): IntArray
    @JvmStatic external fun generationProposed(generation: Long): IntArray
    @JvmStatic external fun generationSettle(
        generation: Long, targetSeconds: Double, otherSeconds: Double,
    ): IntArray
    @JvmStatic external fun generationShow(generation: Long): Int
    @JvmStatic external fun generationShown(generation: Long, path: Int): IntArray
    @JvmStatic external fun generationContext(generation: Long): IntArray
}
