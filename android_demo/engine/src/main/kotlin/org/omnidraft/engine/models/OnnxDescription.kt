package org.omnidraft.engine.models

import java.nio.file.Files
import java.nio.file.Path
import org.omnidraft.engine.files.BUNDLE_FILE
import org.omnidraft.engine.files.Bundle
import org.omnidraft.engine.files.Manifest
import org.omnidraft.engine.files.Progress

/**
 * What a folder's manifest says of its decoder.
 *
 * @property graph the ONNX file.
 * @property contextLength longest sequence the model was made for, in tokens.
 * @property maxThreads how many threads may share a pass; null: any number.
 * @property loraSizes for every LoRA input the size that is not the rank.
 * @property sourceSha256 of what the model was made of, which tells whose an adapter is.
 * @property fileBytes bytes of the graph and its weights.
 * @property kvBytesPerToken bytes of keys and values that a token takes.
 * @property npu the bundle, where it was compiled for an NPU; null: the CPU runs the graph.
 */
class OnnxDescription internal constructor(
    val graph: Path,
    val vocabSize: Int,
    val contextLength: Int,
    val maxThreads: Int?,
    val loraSizes: Map<String, Int>,
    val sourceSha256: String,
    val fileBytes: Long,
    val kvBytesPerToken: Long,
    val npu: Bundle? = null,
) {
    /** How many of [wanted] threads may work on a pass. */
    internal fun threads(wanted: Int): Int = minOf(wanted, maxThreads ?: wanted)

    companion object {
        private const val GRAPH_FILE = "model.onnx"

        /**
         * Read the manifest of a converted model or of a bundle, and compare its files with it.
         *
         * @param checksums compare every file's sha256, not only its size.
         * @throws org.omnidraft.engine.ModelNotFoundException the folder holds no model.
         * @throws org.omnidraft.engine.DamagedFileException a file is missing or differs.
         * @throws org.omnidraft.engine.OmniDraftException a bundle is for another backend.
         */
        fun read(
            folder: Path,
            checksums: Boolean = true,
            progress: Progress = Progress { _, _ -> },
        ): OnnxDescription =
            if (Files.isRegularFile(folder.resolve(BUNDLE_FILE))) ofBundle(folder, checksums, progress)
            else ofManifest(folder, checksums, progress)

        private fun ofBundle(folder: Path, checksums: Boolean, progress: Progress): OnnxDescription {
            val bundle = Bundle.load(folder)
            val npu = bundle.takeIf { it.backend == "qnn" }
            if (npu == null) bundle.checkRuns("onnx")
            bundle.verify(folder, checksums, progress)
            val graph = bundle.decoders.first()
            val caches = graph.inputs.filter { it.name.startsWith("past.") }
            val graphs = if (npu == null) listOf(graph.file) else bundle.decoders.map { it.file.removeSuffix(".onnx") }
            return OnnxDescription(
                folder.resolve(graph.file),
                bundle.geometry.vocabSize,
                bundle.geometry.contextLength,
                bundle.maxThreads,
                sizesBesideRank(graph.inputs.associate { it.name to it.sizes }),
                bundle.sourceSha256,
                bundle.files.filterKeys { name -> graphs.any(name::startsWith) }.values.sumOf { it.size },
                caches.sumOf { past ->
                    val bytes = if (past.dtype == "float32") 4L else 2L
                    past.sizes.filter { it > 0 }.fold(bytes, Long::times)
                } / if (npu == null) 1 else bundle.geometry.contextLength, // an NPU's hold the whole context
                npu,
            )
        }

        private fun ofManifest(folder: Path, checksums: Boolean, progress: Progress): OnnxDescription {
            val manifest = Manifest.load(folder)
            manifest.verify(folder, checksums, progress)
            val number = if (manifest.quantization == "float32") 4L else 2L
            return OnnxDescription(
                folder.resolve(GRAPH_FILE),
                manifest.vocabSize,
                manifest.contextLength,
                manifest.maxThreads,
                emptyMap(),
                manifest.sourceSha256,
                manifest.files.filterKeys { it.startsWith(GRAPH_FILE) }.values.sumOf { it.size },
                2L * manifest.layers * manifest.kvHeads * manifest.headSize * number,
            )
        }
    }
}
