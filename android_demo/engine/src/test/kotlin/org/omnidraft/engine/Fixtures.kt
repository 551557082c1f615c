package org.omnidraft.engine

import java.nio.file.Files
import java.nio.file.Path
import kotlin.io.path.isDirectory
import kotlin.io.path.isRegularFile
import kotlin.io.path.readText
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue

/** Files that tests read. */
object Fixtures {
    /** The repository. */
    val root: Path = Path.of(System.getenv("OMNIDRAFT_ROOT") ?: "../..").toAbsolutePath().normalize()

    val resources: Path = root.resolve("android_demo/engine/src/test/resources")

    /** Converted models and bundles that are small enough to be kept. */
    val models: Path = resources.resolve("models")

    /** The library of OmniDraft's operators; without it nothing can be computed. */
    val operators: String by lazy {
        val named = System.getenv("OMNIDRAFT_OPS")?.let { Path.of(it) }
        val built = named ?: root.resolve("build/release/libomnidraft_ops.so")
        assertTrue(built.isRegularFile()) {
            "$built is missing: build the preset release (cmake --preset release && cmake --build " +
                "--preset release -t omnidraft_ops), or name the library by OMNIDRAFT_OPS"
        }
        built.toString()
    }

    /** Real models, where there are any: see record_models.py. The test is skipped elsewhere. */
    fun realModels(): Path {
        val folder = System.getenv("OMNIDRAFT_TEST_MODELS")?.let { Path.of(it) }
        assumeTrue(folder != null && folder.isDirectory(), "OMNIDRAFT_TEST_MODELS names no folder")
        return folder!!
    }

    /** The instruction sets that kernels choose by: see runtime/processor.py. */
    fun processor(): List<String> {
        val info = Path.of("/proc/cpuinfo")
        if (!info.isRegularFile()) return emptyList()
        val line = info.readText().lineSequence()
            .firstOrNull { it.startsWith("flags") || it.startsWith("Features") }
        val present = line?.substringAfter(':')?.trim()?.split(' ')?.toSet().orEmpty()
        return FEATURES.filter { it in present }
    }

    private val FEATURES = (
        "avx avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_int8 asimd " +
            "asimddp i8mm sve avx512dq avx512_fp16 amx_tile asimdhp bf16 sve2 sme"
        ).split(' ')

    fun folders(parent: Path): List<Path> = Files.list(parent).use { all ->
        all.filter { it.isDirectory() }.sorted().toList()
    }
}
