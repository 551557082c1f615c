package org.omnidraft.engine.models

import java.nio.FloatBuffer
import java.nio.file.Path
import kotlin.math.abs
import kotlin.random.Random
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.decodeFromJsonElement
import kotlinx.serialization.json.encodeToJsonElement
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.files.Manifest

/**
 * Batch invariance of a model here: how much a row depends on how many tokens share its pass.
 *
 * @property difference the largest of a logit between passes of different sizes; 0: invariant, so that
 *   speculation changes no answer by rounding.
 * @property leastPass what [OnnxModel.leastPass] has to be.
 */
@Serializable
data class Invariance(val difference: Float, @SerialName("least_pass") val leastPass: Int) {
    init {
        require(difference >= 0 && leastPass in 1..2) { "a difference of $difference by passes of $leastPass" }
    }

    companion object {
        private val PASS_SIZES = listOf(2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32)
        private const val LARGEST = 32
        private const val TREE_DEPTH = 8

        // Short, ones that end at and just before a length at which the cache's bound prefix grows, long.
        private val CONTEXTS = listOf(0, LENGTH_STEP - 12, LENGTH_STEP - 1, LENGTH_STEP, 1000)
        private val json = Json { allowSpecialFloatingPointValues = true }

        /**
         * The batch invariance of a converted model here.
         *
         * Where its manifest does not tell it for this device, these threads and these libraries, it is
         * measured, which takes seconds, and the manifest keeps it where the folder can be written.
         *
         * @param operators see [OnnxModel].
         * @param threads that work on a pass.
         * @param open opens the model, whose memory is freed again.
         * @return null: the model was made to draft, and need not be invariant.
         * @throws org.omnidraft.engine.OmniDraftException the manifest cannot be read, or see [OnnxModel].
         */
        fun here(folder: Path, operators: String, threads: Int, open: () -> OnnxModel): Invariance? {
            val manifest = Manifest.load(folder)
            if (manifest.invariance.isEmpty()) return null
            val surroundings = surroundings(operators)
            val known = measured(manifest.invariance, surroundings)
            known[threads]?.let { return it }
            val found = open().use { measure(it) }
            val report = report(known + (threads to found), surroundings)
            try {
                Manifest.keepInvariance(folder, report)
            } catch (_: OmniDraftException) {
                // What was found serves this process.
            }
            return found
        }

        /** What a manifest tells for these surroundings, by number of threads. */
        private fun measured(report: JsonObject, surroundings: JsonObject): Map<Int, Invariance> {
            if (surroundings.any { (name, value) -> report[name] != value }) return emptyMap()
            return try {
                json.decodeFromJsonElement<Map<Int, Invariance>>(report.getValue("measured"))
            } catch (_: IllegalArgumentException) { // of which SerializationException is one
                emptyMap()
            } catch (_: NoSuchElementException) {
                emptyMap()
            }
        }

        private fun report(measured: Map<Int, Invariance>, surroundings: JsonObject): JsonObject {
            val largest = measured.values.maxOf { it.difference }
            return JsonObject(
                mapOf(
                    "batch_invariant" to JsonPrimitive(largest == 0f),
                    "largest_difference" to JsonPrimitive(largest),
                    "measured" to json.encodeToJsonElement(measured),
                    "contexts" to json.encodeToJsonElement(CONTEXTS),
                    "pass_sizes" to json.encodeToJsonElement(PASS_SIZES),
                ) + surroundings
            )
        }

        /**
         * Compare, bit for bit, passes over several tokens, in a chain and as nodes of a tree, with passes
         * over each token alone. What is found holds for this device, these threads and this version.
         *
         * @param model its sequence is lost: it is empty afterwards. Its `leastPass` is set to what was found.
         */
        fun measure(model: OnnxModel): Invariance {
            val contexts = CONTEXTS.filter { it + LARGEST <= model.maxLength }
            var found = Invariance(Float.POSITIVE_INFINITY, 1)
            for (leastPass in 1..2) {
                model.leastPass = leastPass
                found = Invariance(contexts.maxOf { difference(model, it) }, leastPass)
                if (found.difference == 0f) return found
            }
            model.leastPass = 1
            return Invariance(found.difference, 1)
        }

        private fun difference(model: OnnxModel, context: Int): Float {
            val random = Random(0)
            val tokens = IntArray(context + LARGEST) { random.nextInt(model.vocabSize) }
            // Text repeats itself, which makes attention sharp: every other 32 tokens are the 32 before.
            for (start in 32 until tokens.size - 31 step 64) tokens.copyInto(tokens, start, start - 32, start)
            model.truncate(0)
            if (context > 0) model.forward(tokens.copyOf(context), 1)
            val ahead = tokens.copyOfRange(context, context + LARGEST)
            val alone = FloatBuffer.allocate(LARGEST * model.vocabSize)
            for (token in ahead) alone.put(model.forward(intArrayOf(token)))
            var largest = 0f
            for (size in PASS_SIZES) {
                model.truncate(context)
                val together = model.forward(ahead.copyOf(size))
                for (row in 0 until size) {
                    largest = maxOf(largest, difference(together, row, alone, row, model.vocabSize))
                }
            }
            model.truncate(context)
            if (model.scoresTrees) {
                // As nodes of a tree, each beside another token, which it must not see.
                val nodes = IntArray(2 * TREE_DEPTH) { if (it % 2 == 0) tokens[it / 2] else ahead[it / 2] }
                val found = model.forwardTree(nodes, IntArray(nodes.size) { context + it / 2 * 2 - 1 })
                for (row in 0 until TREE_DEPTH) {
                    largest = maxOf(largest, difference(found, 2 * row + 1, alone, row, model.vocabSize))
                }
            }
            model.truncate(0)
            return largest
        }

        /** The largest between two rows; infinite where something is not a number. */
        private fun difference(left: FloatBuffer, row: Int, right: FloatBuffer, other: Int, width: Int): Float {
            var largest = 0f
            for (i in 0 until width) {
                val a = left[row * width + i]
                val b = right[other * width + i]
                if (a.toRawBits() == b.toRawBits()) continue
                val apart = abs(a - b)
                largest = if (apart.isNaN()) return Float.POSITIVE_INFINITY else maxOf(largest, apart)
            }
            return largest
        }
    }
}
