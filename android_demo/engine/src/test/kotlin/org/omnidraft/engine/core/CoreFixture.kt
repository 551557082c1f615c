package org.omnidraft.engine.core

import java.nio.file.Path
import kotlin.io.path.isRegularFile
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assertions.assertThrows
import org.omnidraft.engine.Fixtures

/** Loads the library of the native core, which a native build has made. */
object CoreFixture {
    private val loaded by lazy {
        val named = System.getenv("OMNIDRAFT_JNI")?.let { Path.of(it) }
        val built = named ?: Fixtures.root.resolve("build/release/libomnidraft_jni.so")
        assertTrue(built.isRegularFile()) {
            "$built is missing: build it (cmake --preset release -DOMNIDRAFT_JNI=ON && cmake --build " +
                "--preset release -t omnidraft_jni), or name the library by OMNIDRAFT_JNI"
        }
        CoreLibrary.load(built.toString())
    }

    fun load() = loaded

    /** What the core says where it refuses a call with this status. */
    fun refused(status: CoreStatus, call: () -> Unit): String {
        val error = assertThrows(CoreException::class.java, call)
        assertTrue(error.status == status) { "${error.status}: ${error.message}" }
        return error.message!!
    }
}
