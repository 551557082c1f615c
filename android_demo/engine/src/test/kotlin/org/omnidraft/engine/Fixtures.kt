package org.omnidraft.engine

import java.nio.file.Files
import java.nio.file.Path
import kotlin.io.path.copyTo
import kotlin.io.path.createDirectories
import kotlin.io.path.isDirectory
import kotlin.io.path.isRegularFile
import kotlin.io.path.listDirectoryEntries
import kotlin.io.path.name
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

    /** The program that runs classes in a process of its own. */
    val java: String = System.getenv("OMNIDRAFT_JAVA") ?: Path.of(System.getProperty("java.home"), "bin", "java").toString()

    /** Real models, where there are any: see record_models.py. The test is skipped elsewhere. */
    fun realModels(): Path {
        val folder = System.getenv("OMNIDRAFT_TEST_MODELS")?.let { Path.of(it) }
        assumeTrue(folder != null && folder.isDirectory(), "OMNIDRAFT_TEST_MODELS names no folder")
        return folder!!
    }

    /** A copy of a folder of [models] that may be changed. */
    fun copy(name: String, into: Path): Path {
        val folder = into.resolve(name).createDirectories()
        models.resolve(name).listDirectoryEntries().forEach { it.copyTo(folder.resolve(it.name), overwrite = true) }
        return folder
    }

    fun folders(parent: Path): List<Path> = Files.list(parent).use { all ->
        all.filter { it.isDirectory() }.sorted().toList()
    }
}
