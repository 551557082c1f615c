package org.omnidraft.engine.text

import ai.djl.huggingface.tokenizers.jni.LibUtils
import ai.djl.huggingface.tokenizers.jni.TokenizersLibrary
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.cannotLoad

/**
 * Hugging Face's tokenizers library, by DJL's binding of it.
 *
 * Its native functions are called directly: DJL's own class around them tells its makers of its use
 * where it runs in their cloud, and computes more than ids.
 *
 * @param json what a `tokenizer.json` holds.
 * @param originals of ids that it gives: those that they stand for, where these are others.
 * @throws DamagedFileException the library cannot read it.
 */
internal class TokenizerLibrary(
    json: String,
    private val originals: Map<Int, Int> = emptyMap(),
) : AutoCloseable {
    private var handle = made("read") { library.createTokenizerFromString(json) }

    init {
        library.disableTruncation(handle)
        library.disablePadding(handle)
    }

    /**
     * Token ids of a text without half surrogate pairs.
     *
     * @param addSpecial let the post-processor add what it adds.
     */
    fun ids(text: String, addSpecial: Boolean = false): IntArray {
        check(handle != 0L) { "the tokenizer is closed" }
        val encoding = made("used") { library.encode(handle, text, addSpecial) }
        try {
            val ids = library.getTokenIds(encoding)
            return IntArray(ids.size) { ids[it].toInt().let { id -> originals[id] ?: id } }
        } finally {
            library.deleteEncoding(encoding)
        }
    }

    override fun close() {
        if (handle != 0L) library.deleteTokenizer(handle)
        handle = 0
    }

    private companion object {
        val library: TokenizersLibrary by lazy {
            // DJL fetches a native library that its package lacks, unless it is told not to.
            if (System.getProperty(OFFLINE) == null) System.setProperty(OFFLINE, "true")
            try {
                LibUtils.checkStatus() // it loads the native library
                TokenizersLibrary.LIB
            } catch (error: Throwable) { // an EngineException or a LinkageError, by the system
                throw cannotLoad("The library of tokenizers", error)
            }
        }
        const val OFFLINE = "ai.djl.offline"

        fun made(doing: String, make: () -> Long): Long = try {
            make()
        } catch (error: RuntimeException) { // as which the binding throws whatever the library says
            throw DamagedFileException(
                "tokenizer.json cannot be $doing: ${error.message?.take(300)}. Copy the model again.",
                error,
            )
        }
    }
}
