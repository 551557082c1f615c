package org.omnidraft.engine.learning

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtLoggingLevel
import ai.onnxruntime.OrtSession
import java.nio.ByteBuffer
import java.nio.file.Files
import java.nio.file.Path
import org.omnidraft.engine.ModelNotFoundException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.models.LoraWeights
import org.omnidraft.engine.models.Matrix
import org.omnidraft.engine.models.OnnxSession
import org.omnidraft.engine.models.checkAdapter
import org.omnidraft.engine.models.directBytes
import org.omnidraft.engine.models.environment
import org.omnidraft.engine.models.sizesBesideRank

/**
 * What a step computed.
 *
 * @property loss the sum of the three below.
 * @property directLoss weighted sum, in nats; so are [labelLoss] and [chunkLoss].
 * @property kl float32 `[R]` D(q' ‖ p) of each row, in nats.
 * @property logLabel float32 `[R]` log q(label).
 * @property chunkDivergence float32 `[C]` ALM's divergence of each chunk.
 * @property hidden float32 `[R, hiddenSize]` the rows' hidden states, as the head reads them.
 * @property best `[R]` the drafter's likeliest token of each row.
 * @property gradients of [loss], for each LoRA factor, of its shape.
 */
class TrainingResult(
    val loss: Float,
    val directLoss: Float,
    val labelLoss: Float,
    val chunkLoss: Float,
    val kl: FloatArray,
    val logLabel: FloatArray,
    val chunkDivergence: FloatArray,
    val hidden: Matrix,
    val best: IntArray,
    val gradients: LoraWeights,
)

/**
 * Losses of a drafter and the gradients of its LoRA, by the graph of a bundle that was exported with
 * `--train-step`.
 *
 * Losses are sums over rows and chunks: gradients of several batches may be added up. One instance
 * serves one thread.
 *
 * @param path `training.onnx`, or the folder that holds it.
 * @param operators see [org.omnidraft.engine.models.OnnxModel].
 * @param threads threads that work on a step.
 * @throws ModelNotFoundException there is no such file.
 * @throws OmniDraftException ONNX Runtime refuses it, or an older version wrote it.
 */
class TrainingStep(path: Path, operators: String, threads: Int = 2) :
    LearningStep, AutoCloseable {
    private val session: OnnxSession

    /** Number of draft tokens. */
    val vocabSize: Int

    /** For each LoRA factor the size that is not the rank: of A `[in, rank]`, of B `[rank, out]`. */
    override val loraSizes: Map<String, Int>

    init {
        val file = if (Files.isDirectory(path)) path.resolve(TRAINING_FILE) else path
        if (!Files.isRegularFile(file)) {
            throw ModelNotFoundException(
                "There is no training step $file. Export the drafter with --train-step."
            )
        }
        session = OnnxSession(file, operators, trainingOptions(threads))
        try {
            OUTPUTS.firstOrNull { it !in session.outputs }?.let { missing ->
                throw OmniDraftException(
                    "$file has no output '$missing': an older omnidraft wrote it. Export the drafter again."
                )
            }
            val shapes = session.inputs.mapValues { it.value.shape.toList() }
            vocabSize = shapes.getValue("direct_tokens")[0].toInt()
            loraSizes = sizesBesideRank(shapes)
        } catch (error: Throwable) {
            session.close()
            throw error
        }
    }

    /**
     * Compute losses and gradients.
     *
     * @param lora every factor of [loraSizes], of any rank.
     * @throws IllegalArgumentException the batch contradicts itself or the vocabulary.
     * @throws OmniDraftException the LoRA does not fit the drafter, the engine failed, or [stop].
     */
    override fun run(batch: TrainingBatch, lora: LoraWeights, stop: Stop): TrainingResult =
        compute(batch, lora, session.outputs.keys, stop) { output ->
            fun one(name: String) = output(name).floatBuffer.get(0)
            fun several(name: String) = floats(output(name))
            TrainingResult(
                one("loss"), one("direct_loss"), one("label_loss"), one("chunk_loss"), several("kl"),
                several("log_label"), several("chunk_divergence"), matrix(output("hidden")),
                ints(output("best")), loraSizes.keys.associateWith { matrix(output("grad.$it")) },
            )
        }

    /**
     * The drafter's likeliest token of each row, `[R]`, and nothing else.
     *
     * @throws OmniDraftException see [run].
     */
    override fun best(batch: TrainingBatch, lora: LoraWeights, stop: Stop): IntArray =
        compute(batch, lora, setOf("best"), stop) { output -> ints(output("best")) }

    private fun <T> compute(
        batch: TrainingBatch, lora: LoraWeights, wanted: Set<String>, stop: Stop,
        read: ((String) -> OnnxTensor) -> T,
    ): T {
        checkAdapter(lora, loraSizes)
        (loraSizes.keys - lora.keys).minOrNull()?.let {
            throw OmniDraftException("The adapter lacks $it; learning needs all factors.")
        }
        val given = HashMap<String, OnnxTensor>()
        val options = OrtSession.RunOptions()
        try {
            for ((name, input) in batch.inputs(vocabSize)) given[name] = tensor(input)
            for ((name, matrix) in lora) given[name] = tensor(matrix)
            val result = stop.ends({ options.setTerminate(true) }) { session.run(given, wanted, run = options) }
            return result.use { read { name -> it.get(name).get() as OnnxTensor } }
        } finally {
            given.values.forEach { it.close() }
            options.close()
        }
    }

    override fun close() = session.close()

    private companion object {
        const val TRAINING_FILE = "training.onnx"
        val OUTPUTS = listOf(
            "loss", "direct_loss", "label_loss", "chunk_loss", "kl", "log_label", "chunk_divergence",
            "hidden", "best",
        )
    }
}

private fun trainingOptions(threads: Int) = OrtSession.SessionOptions().apply {
    setIntraOpNumThreads(threads)
    setInterOpNumThreads(1)
    setSessionLogLevel(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR)
    // A plan of the memory is kept for each shape that was seen, and shapes differ from batch to
    // batch: twice the memory.
    setMemoryPatternOptimization(false)
    // Weights are read in both directions; packed for each they would be there three times.
    addConfigEntry("session.disable_prepacking", "1")
    // Otherwise int8 weights are expanded in every step, not once.
    addConfigEntry("session.disable_quant_qdq", "1")
    // Learning happens beside other work.
    addConfigEntry("session.intra_op.allow_spinning", "0")
}

private fun tensor(input: TrainingBatch.Input): OnnxTensor {
    val ids = input.ids
    if (ids == null) {
        return tensor(input.numbers!!, input.shape)
    }
    val buffer = directBytes(ids.size * Long.SIZE_BYTES).asLongBuffer()
    ids.forEachIndexed { i, id -> buffer.put(i, id.toLong()) }
    return OnnxTensor.createTensor(environment, buffer, input.shape)
}

private fun tensor(matrix: Matrix) =
    tensor(matrix.values, longArrayOf(matrix.rows.toLong(), matrix.columns.toLong()))

private fun tensor(values: FloatArray, shape: LongArray): OnnxTensor {
    val bytes: ByteBuffer = directBytes(values.size * Float.SIZE_BYTES)
    bytes.asFloatBuffer().put(values)
    return OnnxTensor.createTensor(environment, bytes.asFloatBuffer(), shape)
}

private fun floats(tensor: OnnxTensor): FloatArray =
    tensor.floatBuffer.let { buffer -> FloatArray(buffer.remaining()).also(buffer::get) }

private fun ints(tensor: OnnxTensor): IntArray =
    tensor.longBuffer.let { buffer -> IntArray(buffer.remaining()) { buffer.get(it).toInt() } }

private fun matrix(tensor: OnnxTensor): Matrix {
    val (rows, columns) = tensor.info.shape
    return Matrix(rows.toInt(), columns.toInt(), floats(tensor))
}
