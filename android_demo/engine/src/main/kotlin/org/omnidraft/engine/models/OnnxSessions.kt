package org.omnidraft.engine.models

import ai.onnxruntime.NodeInfo
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtLoggingLevel
import ai.onnxruntime.OrtSession
import ai.onnxruntime.TensorInfo
import java.nio.file.Path
import org.omnidraft.engine.DamagedFileException
import org.omnidraft.engine.NotEnoughMemoryException
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.cannotLoad

/**
 * ONNX Runtime's environment, which tells nobody what is run.
 *
 * @throws OmniDraftException its library cannot be loaded.
 */
internal val environment: OrtEnvironment by lazy {
    try {
        OrtEnvironment.getEnvironment(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR)
            .also { it.setTelemetry(false) }
    } catch (error: LinkageError) {
        throw cannotLoad("ONNX Runtime's library", error)
    }
}

/**
 * What a session that computes passes of a model is opened with.
 *
 * Its threads spin between the operators of a pass, and sleep once it has ended: they would take the
 * cores of the other model's threads, as target and drafter take turns.
 */
internal fun passOptions(threads: Int) = OrtSession.SessionOptions().apply {
    setIntraOpNumThreads(threads)
    setInterOpNumThreads(1)
    setOptimizationLevel(OrtSession.SessionOptions.OptLevel.BASIC_OPT)
    setSessionLogLevel(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR)
    addConfigEntry("session.force_spinning_stop", "1")
}

/**
 * A graph that may use OmniDraft's operators.
 *
 * @param options belong to it from now on. They hold the library of the operators, which goes from
 *   memory with them: they are closed after the session.
 * @param operators the library: a path, or where the system looks for libraries by name, as Android
 *   does, its name; null: the graph uses none of them.
 * @throws DamagedFileException ONNX Runtime refuses the graph.
 * @throws OmniDraftException memory is short, or it refuses the operators.
 */
internal class OnnxSession(
    graph: Path,
    operators: String?,
    private val options: OrtSession.SessionOptions,
) : AutoCloseable {
    private val session = try {
        open(graph, operators)
    } catch (error: Throwable) {
        options.close()
        throw error
    }
    val inputs: Map<String, TensorInfo> = tensors(session.inputInfo)
    val outputs: Map<String, TensorInfo> = tensors(session.outputInfo)

    private fun open(graph: Path, operators: String?): OrtSession {
        try {
            operators?.let(options::registerCustomOpLibrary)
        } catch (error: OrtException) {
            throw OmniDraftException(
                "ONNX Runtime ${environment.version} refuses OmniDraft's operators ($operators): " +
                    "${reason(error)}. Build or install both anew.",
                error,
            )
        }
        try {
            return environment.createSession(graph.toString(), options)
        } catch (error: OrtException) {
            if (isMemoryShort(error)) {
                throw NotEnoughMemoryException(
                    "There is not enough memory to load $graph. End other programs, or take " +
                        "weights of fewer bits or a smaller model.",
                    error,
                )
            }
            throw DamagedFileException("$graph cannot be loaded: ${reason(error)}.", error)
        }
    }

    /**
     * Compute what [wanted] names, and what [pinned] gives memory to.
     *
     * @throws OmniDraftException the engine failed.
     */
    fun run(
        inputs: Map<String, OnnxTensor>,
        wanted: Set<String> = emptySet(),
        pinned: Map<String, OnnxTensor> = emptyMap(),
        run: OrtSession.RunOptions? = null,
    ): OrtSession.Result = try {
        session.run(inputs, wanted, pinned, run)
    } catch (error: OrtException) {
        throw cannotRun(error)
    }

    override fun close() {
        session.close()
        options.close()
    }

    private fun tensors(nodes: Map<String, NodeInfo>) =
        nodes.mapValues { (_, node) -> node.info as TensorInfo }
}

/** What to throw where ONNX Runtime fails within a pass. */
private fun cannotRun(error: OrtException): OmniDraftException =
    if (isMemoryShort(error)) {
        NotEnoughMemoryException(
            "There is not enough memory for a pass of the model. End other programs, or take a " +
                "shorter context.",
            error,
        )
    } else {
        OmniDraftException("The model's engine failed: ${reason(error)}.", error)
    }

private val noMemory = Regex(
    "bad_alloc|bad allocation|allocate memory|not enough memory|out of memory",
    RegexOption.IGNORE_CASE,
)
private val prefix = Regex("^Error code - (\\w+) - message: ")

private fun isMemoryShort(error: OrtException) = noMemory.containsMatchIn(error.message.orEmpty())

private fun reason(error: OrtException): String {
    val text = error.message.orEmpty().trim().ifEmpty { error.javaClass.simpleName }
    val said = when (error.code) {
        OrtException.OrtErrorCode.ORT_INVALID_PROTOBUF ->
            "it is no ONNX graph, or only a part of one"
        OrtException.OrtErrorCode.ORT_NO_SUCHFILE -> "a file of it is missing"
        else -> text.replace(prefix, "")
    }
    // The first line says what, the others where in the engine's source.
    return said.lineSequence().first().trimEnd('.', ' ')
}
