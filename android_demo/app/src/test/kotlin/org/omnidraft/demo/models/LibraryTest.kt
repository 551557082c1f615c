package org.omnidraft.demo.models

import java.io.File
import java.io.InputStream
import kotlin.test.assertEquals
import kotlin.test.assertIs
import kotlin.test.assertNull
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.Job
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.test.StandardTestDispatcher
import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.runCurrent
import kotlinx.coroutines.test.runTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

@OptIn(ExperimentalCoroutinesApi::class)
class LibraryTest {
    @TempDir
    lateinit var folder: File

    private val good = bundle(mapOf("model.onnx" to ByteArray(10)), Kind.MODEL)

    private fun process(test: suspend TestScope.(Library) -> Unit) = runTest {
        val dispatcher = StandardTestDispatcher(testScheduler)
        val scope = CoroutineScope(dispatcher + Job())
        test(Library(scope, ModelStore(folder), dispatcher))
        scope.cancel()
    }

    @Test
    fun `an imported model is listed and said`() = process { library ->
        library.import(MemorySource("small", good))
        assertEquals("small", library.state.value.importing?.name)
        runCurrent()
        val state = library.state.value
        assertNull(state.importing)
        assertEquals(LibraryNotice.Imported("small"), state.notice)
        assertEquals(listOf("small"), state.targets.map { it.name })
    }

    @Test
    fun `only converted models can answer`() = process { library ->
        library.import(MemorySource("bundle", bundle(mapOf("model.onnx" to ByteArray(10)))))
        runCurrent()
        assertEquals(1, library.state.value.models.size)
        assertEquals(emptyList(), library.state.value.targets)
    }

    @Test
    fun `a failed import says why`() = process { library ->
        library.import(MemorySource("photos", mapOf("a.jpg" to ByteArray(1))))
        runCurrent()
        assertIs<LibraryNotice.Problem>(library.state.value.notice)
        assertNull(library.state.value.importing)
        library.import(MemorySource("small", good))
        runCurrent()
        assertEquals(LibraryNotice.Imported("small"), library.state.value.notice)
    }

    @Test
    fun `a cancelled import leaves nothing`() = process { library ->
        val source = object : Source {
            override val name = "small"

            override fun visit(visit: (String, InputStream) -> Boolean) {
                library.cancelImport()
                MemorySource(name, good).visit(visit)
            }
        }
        library.import(source)
        runCurrent()
        assertEquals(LibraryNotice.Cancelled("small"), library.state.value.notice)
        assertEquals(emptyList(), folder.list()?.toList())
    }

    @Test
    fun `one import at a time`() = process { library ->
        library.import(MemorySource("first", good))
        library.import(MemorySource("second", good))
        runCurrent()
        assertEquals(listOf("first"), library.state.value.models.map { it.name })
    }

    @Test
    fun `when an import is over the next can begin`() = process { library ->
        library.import(MemorySource("first", good))
        library.state.first { it.importing == null }
        library.import(MemorySource("second", good))
        runCurrent()
        assertEquals(listOf("first", "second"), library.state.value.models.map { it.name })
    }

    @Test
    fun `what an earlier process left is deleted and said`() = process { library ->
        File(folder, ".importing-large").mkdirs()
        library.start()
        runCurrent()
        assertEquals(LibraryNotice.CleanedUp(listOf("large")), library.state.value.notice)
    }

    @Test
    fun `a deleted model is no longer listed`() = process { library ->
        library.import(MemorySource("small", good))
        runCurrent()
        library.delete("small")
        runCurrent()
        assertEquals(emptyList(), library.state.value.models)
    }
}
