package org.omnidraft.engine

import java.nio.file.Files
import java.nio.file.Path
import org.omnidraft.engine.core.Vocabulary
import org.omnidraft.engine.files.MANIFEST_FILE
import org.omnidraft.engine.files.Progress
import org.omnidraft.engine.learning.ModelKey
import org.omnidraft.engine.models.AdaptiveModel
import org.omnidraft.engine.models.CacheMemory
import org.omnidraft.engine.models.Invariance
import org.omnidraft.engine.models.OnnxDescription
import org.omnidraft.engine.models.OnnxModel
import org.omnidraft.engine.models.openNpuModel
import org.omnidraft.engine.text.Tokenizer

/**
 * A model, its tokenizer, and whose it is.
 *
 * @property name of its folder.
 * @property threads that work on a pass.
 * @property invariance of a converted target, here; null: it is none.
 */
internal class LoadedModel private constructor(
    val name: String,
    val folder: Path,
    val model: AdaptiveModel,
    val threads: Int,
    val tokenizer: Tokenizer,
    val key: ModelKey,
    val bytes: Long,
    val invariance: Invariance?,
) : AutoCloseable {
    /** The tokens, one for each column of the logits; columns without a token are special. */
    fun vocabulary(): Vocabulary {
        val known = 0 until minOf(model.vocabSize, tokenizer.vocabSize)
        return Vocabulary(
            List(model.vocabSize, tokenizer::surface),
            List(model.vocabSize, tokenizer::token),
            known.filter(tokenizer::isByteToken),
        )
    }

    override fun close() {
        model.close()
        tokenizer.close()
    }

    companion object {
        /**
         * Open the model of a folder whose files are compared with its manifest, checksums included.
         *
         * @param npuProvider see [openNpuModel].
         * @param drafts it is a drafter, which need not be batch-invariant; of a converted target this is
         *   measured where its manifest does not tell it for this device: see [Invariance.here].
         * @throws OmniDraftException see [OnnxDescription.read], [OnnxModel] and [Tokenizer].
         */
        fun open(
            folder: Path,
            operators: String,
            npuProvider: String?,
            threads: Int,
            maxLength: Int?,
            memory: CacheMemory,
            progress: Progress,
            drafts: Boolean,
        ): LoadedModel {
            val description = OnnxDescription.read(folder, progress = progress)
            if (!drafts) description.npu?.let {
                throw OmniDraftException("${it.name} is a drafter for an NPU, and no target. Choose it as drafter.")
            }
            val tokenizer = Tokenizer.load(folder)
            var invariance: Invariance? = null
            fun make() = OnnxModel(description, operators, threads, maxLength, memory)
            fun invariant() = make().also { it.leastPass = invariance?.leastPass ?: 1 }
            val model = try {
                if (!drafts && Files.isRegularFile(folder.resolve(MANIFEST_FILE))) {
                    invariance = Invariance.here(folder, operators, description.threads(threads), ::make)
                }
                description.npu?.let { openNpuModel(folder, it, npuProvider, memory) } ?: invariant()
            } catch (error: Throwable) {
                tokenizer.close()
                throw error
            }
            val name = folder.fileName.toString()
            val cache = description.kvBytesPerToken * model.maxLength
            val key = ModelKey(name, description.sourceSha256)
            val bytes = description.fileBytes + cache
            return LoadedModel(name, folder, model, description.threads(threads), tokenizer, key, bytes, invariance)
        }
    }
}
