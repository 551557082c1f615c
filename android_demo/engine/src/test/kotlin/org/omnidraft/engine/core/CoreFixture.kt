package org.omnidraft.engine.core

import java.nio.file.Path
import kotlin.io.path.isRegularFile
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assertions.assertThrows
import org.omnidraft.engine.Fixtures

/** Loads the library of the native core, which is built beside that of the operators. */
object CoreFixture {
    /** The library. */
    val library: Path by lazy {
        Path.of(Fixtures.operators).resolveSibling("libomnidraft_jni.so").also {
            assertTrue(it.isRegularFile()) {
                "$it is missing: build it (cmake --preset release -DOMNIDRAFT_JNI=ON && cmake --build " +
                    "--preset release -t omnidraft_jni)"
            }
        }
    }

    private val loaded by lazy { CoreLibrary.load(library.toString()) }

    fun load() = loaded

    /** What the core says where it refuses a call with this status. */
    fun refused(status: CoreStatus, call: () -> Unit): String {
        val error = assertThrows(CoreException::class.java, call)
        assertTrue(error.status == status) { "${error.status}: ${error.message}" }
        return error.message!!
    }
}
