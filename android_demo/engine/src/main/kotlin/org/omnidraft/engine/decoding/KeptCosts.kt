package org.omnidraft.engine.decoding

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.file.Path
import kotlin.io.path.isRegularFile
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.core.Costs
import org.omnidraft.engine.files.makeFolder
import org.omnidraft.engine.files.readBounded
import org.omnidraft.engine.files.replaceFile

/**
 * Costs that are measured at first use, and kept from session to session.
 *
 *     val kept = KeptCosts.open(file) { measureCosts(target, drafter) }
 *     CostAwarePolicy(kept.costs)                // follows what passes take
 *     kept.save()
 *
 * @param file null: they are not kept.
 */
class KeptCosts(val costs: Costs, private val file: Path?) : AutoCloseable {
    /**
     * Keep the curves for the next session, when they are new or have moved.
     *
     * @throws OmniDraftException the file cannot be written.
     */
    fun save() {
        if (file == null || !costs.hasMoved) return
        val sizes = SIZES.sorted()
        val target = costs.bands.associateWith { band -> sizes.associateWith { costs.targetSeconds(band, it) } }
        val content = Content(SCHEMA_VERSION, target, sizes.associateWith { costs.drafterSeconds(it) })
        makeFolder(file.toAbsolutePath().parent)
        replaceFile(file, ByteBuffer.wrap(json.encodeToString(content).encodeToByteArray()))
        costs.written()
    }

    override fun close() = costs.close()

    @Serializable
    private class Content(
        @SerialName("schema_version") val schemaVersion: Int,
        val target: Map<Int, Map<Int, Double>>,
        val drafter: Map<Int, Double>,
    )

    companion object {
        private const val SCHEMA_VERSION = 1
        private const val LARGEST = 1L shl 16
        private val json = Json { prettyPrint = true }

        /**
         * The costs of two models on this device.
         *
         * @param file its name tells the models, their threads and the device; null: nothing is kept.
         * @param measure makes them where there are none that can be used.
         */
        fun open(file: Path?, measure: () -> Costs): KeptCosts {
            val kept = if (file != null && file.isRegularFile()) read(file) else null
            return KeptCosts(kept ?: measure(), file)
        }

        // What cannot be read is measured again in a moment.
        private fun read(file: Path): Costs? = try {
            val content = json.decodeFromString<Content>(readBounded(file, LARGEST).decodeToString())
            if (content.schemaVersion != SCHEMA_VERSION) null
            else Costs(content.target, content.drafter).apply { written() }
        } catch (_: IOException) {
            null
        } catch (_: SerializationException) {
            null
        } catch (_: OmniDraftException) {
            null
        }
    }
}
