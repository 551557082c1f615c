package org.omnidraft.engine.models

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.FloatBuffer
import java.nio.file.Path
import java.security.MessageDigest
import kotlin.io.path.name
import kotlin.io.path.readText
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertEquals
import org.omnidraft.engine.files.toHex

/** What record_models.py did with a model, and what came of it. */
@Serializable
class RecordedPasses(
    val threads: Int,
    @SerialName("least_pass") val leastPass: Int,
    val processor: List<String>,
    val onnxruntime: String,
    @SerialName("kv_bytes_per_token") val kvBytesPerToken: Int,
    @SerialName("max_length") val maxLength: Int,
    val steps: List<Step>,
) {
    @Serializable
    class Step(
        @SerialName("do") val action: String,
        val tokens: List<Int> = emptyList(),
        val parents: List<Int> = emptyList(),
        val path: List<Int> = emptyList(),
        val rows: Int = 0,
        val length: Int = 0,
        val rank: Int = 0,
        val seed: Int = 0,
        val without: String = "",
        val sha256: String = "",
        val sample: Map<Int, Float> = emptyMap(),
        val hidden: String? = null,
    )

    /** Whether bits must agree: another processor chooses other kernels, another version has other ones. */
    private val sameBits = processor == cpuFeatures() && onnxruntime == environment.version

    /** Do the same, and compare. */
    fun replay(model: AdaptiveModel, sizes: Map<String, Int>) {
        if (model is OnnxModel) {
            model.leastPass = leastPass
            assertEquals(kvBytesPerToken, model.kvBytesPerToken)
        }
        assertEquals(maxLength, model.maxLength)
        steps.forEachIndexed { index, step -> replay(model, step, sizes, "step $index: ${step.action}") }
    }

    private fun replay(model: AdaptiveModel, step: Step, sizes: Map<String, Int>, place: String) {
        val logits = when (step.action) {
            "forward" -> model.forward(step.tokens.toIntArray(), step.rows)
            "tree" -> model.forwardTree(step.tokens.toIntArray(), step.parents.toIntArray(), step.rows)
            "keep" -> null.also { model.keep(step.path.toIntArray()) }
            "truncate" -> null.also { model.truncate(step.length) }
            "adapter" -> {
                val left = sizes.filterKeys { step.without !in it }
                model.setAdapter(if (step.rank > 0) adapter(left, step.rank, step.seed) else null)
                return
            }
            else -> error(step.action)
        }
        assertEquals(step.length, model.length, place)
        if (logits == null) return
        assertEquals(step.rows * model.vocabSize, logits.remaining(), place)
        val last = (step.rows - 1) * model.vocabSize
        for ((column, value) in step.sample) assertEquals(value, logits[last + column], TOLERANCE, place)
        if (!sameBits) return
        assertEquals(step.sha256, digest(logits), place)
        step.hidden?.let { assertEquals(it, digest(model.lastHidden()), "$place, hidden") }
    }

    companion object {
        private const val TOLERANCE = 0.05f

        fun of(folder: Path): List<RecordedPasses> =
            Json.decodeFromString(folder.resolveSibling("${folder.name}.passes.json").readText())

        fun adapter(sizes: Map<String, Int>, rank: Int, seed: Int): LoraWeights =
            sizes.keys.sorted().withIndex().associate { (place, name) ->
                val size = sizes.getValue(name)
                val values = FloatArray(size * rank) { (((it * 37 + 11 * place + seed) % 101) - 50) / 512f }
                name to if (name.endsWith(".A")) Matrix(size, rank, values) else Matrix(rank, size, values)
            }

        private fun digest(values: FloatBuffer): String {
            val bytes = ByteBuffer.allocate(values.remaining() * 4).order(ByteOrder.LITTLE_ENDIAN)
            bytes.asFloatBuffer().put(values.duplicate())
            return MessageDigest.getInstance("SHA-256").digest(bytes.array()).toHex()
        }
    }
}
