package org.omnidraft.engine.models

import java.io.IOException
import java.nio.file.Files
import java.nio.file.Paths
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put
import kotlinx.serialization.json.putJsonArray
import kotlinx.serialization.json.add
import org.omnidraft.engine.VERSION
import org.omnidraft.engine.files.fileSha256
import org.omnidraft.engine.files.reading

/**
 * What the bits of a converted model's logits depend on beside its files and the threads, as its
 * manifest keeps it: Python writes the same.
 *
 * @param operators as for [OnnxModel]; a library that is no file is known by its version alone.
 */
internal fun surroundings(operators: String): JsonObject = buildJsonObject {
    put("onnxruntime", environment.version)
    val architecture = System.getProperty("os.arch")
    put("machine", if (architecture == "amd64") "x86_64" else architecture)
    putJsonArray("cpu_features") { cpuFeatures().forEach(::add) }
    val library = Paths.get(operators)
    val file = if (Files.isRegularFile(library)) reading(library) { fileSha256(library) } else ""
    put("kernels", "$VERSION ${file.take(16)}".trimEnd())
}

// As in runtime/processor.py.
private val FEATURES = (
    "avx avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_int8 asimd " +
        "asimddp i8mm sve avx512dq avx512_fp16 amx_tile asimdhp bf16 sve2 sme"
    ).split(' ')

/** The instruction sets that kernels choose by, where the system tells, else none. */
internal fun cpuFeatures(): List<String> {
    val lines = try {
        Files.readAllLines(Paths.get("/proc/cpuinfo"))
    } catch (_: IOException) {
        emptyList()
    }
    val line = lines.firstOrNull { it.startsWith("flags") || it.startsWith("Features") }.orEmpty()
    val present = line.substringAfter(':').trim().split(' ').toSet()
    return FEATURES.filter { it in present }
}
