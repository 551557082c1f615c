package org.omnidraft.engine.learning

import java.time.OffsetDateTime
import java.time.ZoneOffset
import java.time.temporal.ChronoUnit
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.JsonObject
import org.omnidraft.engine.models.LoraWeights

internal const val ADAPTER_SCHEMA_VERSION = 1

/**
 * A model that an adapter belongs to: a name to show, and the sha256 of its weights' source.
 *
 * Two keys mean the same model when their [sha256] agree, whatever the precision it was converted to:
 * it is [org.omnidraft.engine.models.OnnxDescription.sourceSha256].
 */
@Serializable
data class ModelKey(val name: String, val sha256: String) {
    override fun toString() = "$name (${sha256.take(12)})"
}

/**
 * Whose an adapter is and how it came about.
 *
 * @property created a moment in ISO 8601 with its offset, as [updated]; that and [rank] (of the LoRA, 0
 *   without one) are set when it is saved.
 * @property prompts prompts learned from.
 * @property updates steps of the optimizer.
 * @property figures the learner's own, say its history of acceptance.
 */
@Serializable
data class AdapterMetadata(
    @SerialName("schema_version") val schemaVersion: Int = ADAPTER_SCHEMA_VERSION,
    val drafter: ModelKey,
    val target: ModelKey,
    val created: String = now(),
    val updated: String = now(),
    val prompts: Int = 0,
    val updates: Int = 0,
    val rank: Int = 0,
    val figures: JsonObject = JsonObject(emptyMap()),
) {
    /** What no program writes. */
    internal fun check() {
        for (key in listOf(drafter, target)) {
            require(SHA256.matches(key.sha256)) { "'${key.sha256.take(80)}' is no sha256" }
        }
        for (time in listOf(created, updated)) {
            val year = runCatching { OffsetDateTime.parse(time).year }.getOrDefault(0)
            require(year in 1970..9998) { "'${time.take(60)}' is no moment" }
        }
        require(prompts >= 0 && updates >= 0 && rank >= 0) { "a count is negative" }
    }

    companion object {
        private val SHA256 = Regex("[0-9a-f]{64}")

        /** This moment. */
        internal fun now(): String =
            OffsetDateTime.now(ZoneOffset.UTC).truncatedTo(ChronoUnit.MICROS).toString()
    }
}

/**
 * What one drafter has learned for one target and, optionally, one task.
 *
 * @property lora one rank for all; empty: none.
 * @property ngrams the n-gram cache's bytes; empty: none.
 * @property head the acceptance head's arrays, by names of its own.
 * @property optimizer the optimizer's state, likewise.
 */
class Adapter(
    val metadata: AdapterMetadata,
    val lora: LoraWeights = emptyMap(),
    val ngrams: ByteArray = ByteArray(0),
    val head: Map<String, NumberArray> = emptyMap(),
    val optimizer: Map<String, NumberArray> = emptyMap(),
) {
    /** The rank of the LoRA, 0 without one. */
    val rank: Int get() = lora.entries.firstOrNull { it.key.endsWith(".A") }?.value?.columns ?: 0
}
