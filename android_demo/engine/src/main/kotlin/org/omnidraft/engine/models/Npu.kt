package org.omnidraft.engine.models

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtEpDevice
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtHardwareDevice.OrtHardwareDeviceType
import ai.onnxruntime.OrtLoggingLevel
import ai.onnxruntime.OrtProvider
import ai.onnxruntime.OrtSession
import java.nio.file.Path
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.files.Bundle
import org.omnidraft.engine.files.Soc

private const val PROVIDER = "QNNExecutionProvider"

// Quantized inputs and outputs stay on the NPU, or the CPU would have nodes after all. A draft step is
// waited for, and is over in milliseconds.
private val SETTINGS = mapOf(
    "htp_graph_finalization_optimization_mode" to "3",
    "offload_graph_io_quantization" to "0",
    "htp_performance_mode" to "burst",
)

/**
 * A drafter of the qnn backend on a Qualcomm NPU, by ONNX Runtime's QNN execution provider. On an x86
 * machine the provider emulates the chip: its numbers, not its speed.
 *
 * @param bundle of the folder, whose files have been verified.
 * @param provider the library of the provider, a path: `libonnxruntime_providers_qnn.so`; null: ONNX
 *   Runtime has it in itself, as `onnxruntime-android-qnn` does.
 * @param memory where the cache lies.
 * @throws OmniDraftException there is no such provider or no NPU, or the graphs are another chip's.
 */
internal fun openNpuModel(folder: Path, bundle: Bundle, provider: String?, memory: CacheMemory): StaticModel {
    bundle.checkRuns("qnn")
    val shared = bundle.soc?.sharedWeights == true
    if (shared && isEmulator) {
        throw OmniDraftException(
            "The graphs of $folder share their weights, which the chip can load and its emulation here " +
                "cannot. Export the drafter again without --share-weights to run it here."
        )
    }
    val sessions = HashMap<Int, OnnxSession>()
    try {
        for (graph in bundle.decoders) {
            val options = npuOptions(bundle.soc, provider)
            if (shared) options.addConfigEntry("ep.share_ep_contexts", "1")
            if (shared && graph === bundle.decoders.last()) {
                options.addConfigEntry("ep.stop_share_ep_contexts", "1")
            }
            val tokens = requireNotNull(graph.tokens) { "${graph.file} has no fixed number of tokens" }
            sessions[tokens] = OnnxSession(folder.resolve(graph.file), null, options)
        }
    } catch (error: OmniDraftException) {
        sessions.values.forEach { it.close() }
        val chip = bundle.soc?.name ?: "another chip"
        throw OmniDraftException(
            "${error.message} It was compiled for $chip; export the drafter again with --soc for this " +
                "device's chip, or with --backend onnx for its CPU.",
            error,
        )
    }
    return StaticModel(sessions, memory)
}

private val isEmulator = System.getProperty("os.arch") in setOf("amd64", "x86_64")

private fun npuOptions(soc: Soc?, provider: String?): OrtSession.SessionOptions {
    val options = OrtSession.SessionOptions()
    try {
        options.setSessionLogLevel(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR)
        options.addConfigEntry("session.disable_cpu_ep_fallback", "1")
        if (provider == null) {
            if (OrtProvider.QNN !in OrtEnvironment.getAvailableProviders()) {
                throw OmniDraftException(
                    "This program's ONNX Runtime has no part for Qualcomm's NPUs. Build it with " +
                        "onnxruntime-android-qnn, or export the drafter with --backend onnx."
                )
            }
            options.addQnn(SETTINGS + ("backend_path" to "libQnnHtp.so"))
        } else {
            // A device knows its own chip; the emulation has to be told.
            val told = if (soc != null && isEmulator) mapOf("soc_model" to "${soc.modelId}") else emptyMap()
            options.addExecutionProvider(listOf(npu(provider)), SETTINGS + told + ("backend_type" to "htp"))
        }
        return options
    } catch (error: OrtException) {
        options.close()
        throw OmniDraftException("ONNX Runtime refuses the NPU: ${error.message}.", error)
    } catch (error: Throwable) {
        options.close()
        throw error
    }
}

/** The NPU where there is one, before what stands for it. */
private fun npu(provider: String): OrtEpDevice {
    if (qnnDevices().isEmpty()) environment.registerExecutionProviderLibrary(PROVIDER, provider)
    return qnnDevices().minByOrNull { it.device.type != OrtHardwareDeviceType.NPU }
        ?: throw OmniDraftException("$provider finds no NPU on this device and no emulation of one.")
}

private fun qnnDevices() = environment.epDevices.filter { it.epName == PROVIDER }
