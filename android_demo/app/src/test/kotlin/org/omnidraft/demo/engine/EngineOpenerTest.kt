package org.omnidraft.demo.engine

import android.app.ActivityManager
import java.io.File
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Assume.assumeTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.omnidraft.demo.DemoApplication
import org.omnidraft.demo.chat.AnswerOptions
import org.omnidraft.demo.chat.Message
import org.omnidraft.demo.chat.Role
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config

/** The app's engine with the small models of the engine's tests. */
@RunWith(RobolectricTestRunner::class)
// A native library belongs to one class loader, and each version of Android has its own.
@Config(sdk = [35], application = DemoApplication::class)
class EngineOpenerTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val app get() = RuntimeEnvironment.getApplication() as DemoApplication
    private val kept get() = File(app.filesDir, "omnidraft")

    @Before
    fun `there is memory, and the native libraries are there`() {
        assumeTrue("OMNIDRAFT_OPS names no library", System.getenv("OMNIDRAFT_OPS") != null)
        val info = ActivityManager.MemoryInfo().also { it.availMem = 8_000_000_000 }
        shadowOf(app.getSystemService(ActivityManager::class.java)).setMemoryInfo(info)
    }

    private fun model(name: String, copy: String = name): File {
        val source = File("../engine/src/test/resources/models/$name")
        return File(folder.root, copy).also { source.copyRecursively(it, overwrite = true) }
    }

    private fun answered(target: File, drafter: File): String = runBlocking {
        EngineOpener(app).open(target, drafter).use { assistant ->
            assistant.setLearning(true)
            val asked = listOf(Message(Role.USER, "Why is the sky blue?"))
            assistant.answer(asked, AnswerOptions(maxNewTokens = 24)).toList().joinToString("") { it.text }
        }
    }

    @Test
    fun `a drafter learns for each target by itself`() {
        val drafter = model("drafter-own")
        val first = model("target-4bit")
        val manifest = File(model("target-4bit", "another"), "omnidraft-model.json")
        val changed = manifest.readText().replace(Regex("(\"source_sha256\": \")[0-9a-f]{8}"), "$1" + "0".repeat(8))
        manifest.writeText(changed)
        val answers = listOf(first, manifest.parentFile!!, first).map { answered(it, drafter) }
        assertEquals(1, answers.toSet().size)
        assertEquals(2, File(kept, "adapters").list().orEmpty().count { it.endsWith(".adapter") })
    }

    @Test
    fun `a model that was imported again under another name goes on with what was learned`() {
        val drafter = model("drafter-own")
        answered(model("target-4bit"), drafter)
        answered(model("target-4bit", "target-4bit (2)"), drafter)
        assertEquals(1, File(kept, "adapters").list().orEmpty().count { it.endsWith(".adapter") })
    }

    @Test
    fun `without a training step n-grams are kept`() {
        answered(model("target-4bit"), model("drafter-any"))
        assertTrue(File(kept, "ngrams").list().orEmpty().isNotEmpty())
    }
}
