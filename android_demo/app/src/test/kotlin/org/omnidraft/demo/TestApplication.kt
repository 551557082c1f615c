package org.omnidraft.demo

import android.os.Looper
import java.io.File
import org.junit.Assert.fail
import org.omnidraft.demo.chat.Choice
import org.omnidraft.demo.chat.FakeOpener
import org.omnidraft.demo.chat.Phase
import org.omnidraft.demo.models.Kind
import org.omnidraft.demo.models.bundle
import org.robolectric.Shadows.shadowOf

/** The app with [FakeOpener] in the place of the engine. */
class TestApplication : DemoApplication() {
    public override val opener = FakeOpener()

    /** Puts a model into the app's storage. */
    fun store(name: String, kind: Kind) {
        for ((path, content) in bundle(mapOf("model.onnx" to ByteArray(10)), kind)) {
            File(filesDir, "models/$name/$path").apply { parentFile?.mkdirs() }.writeBytes(content)
        }
    }

    /** Opens a target and a drafter. */
    fun openModels() {
        store("target", Kind.MODEL)
        store("drafter", Kind.BUNDLE)
        chat.open(Choice("target", "drafter"))
        await("the models are open") { chat.state.value.phase == Phase.Ready }
    }
}

/**
 * Lets the main thread work until [condition] holds, which other threads may bring about. It is
 * looked at [times] times at most, 10 ms apart.
 */
fun await(what: String, times: Int = 3000, condition: () -> Boolean) {
    val looper = shadowOf(Looper.getMainLooper())
    repeat(times) {
        looper.idle()
        if (condition()) return
        Thread.sleep(10)
    }
    fail("$what: it never came to that")
}

/** Lets the main thread do all that it has to do. */
fun idle() = shadowOf(Looper.getMainLooper()).idle()
