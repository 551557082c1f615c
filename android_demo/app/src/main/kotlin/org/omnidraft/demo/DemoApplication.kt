package org.omnidraft.demo

import android.app.Application
import java.io.File
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.MainScope
import org.omnidraft.demo.chat.AssistantOpener
import org.omnidraft.demo.chat.Chat
import org.omnidraft.demo.chat.ChatFile
import org.omnidraft.demo.engine.EngineOpener
import org.omnidraft.demo.models.Library
import org.omnidraft.demo.models.ModelStore

/** Holds what outlives the activities: the chat with its models, and the library of models. */
open class DemoApplication : Application() {
    private val scope = MainScope()

    protected open val opener: AssistantOpener by lazy { EngineOpener(this) }

    private val store by lazy { ModelStore(File(filesDir, "models")) }

    val library by lazy { Library(scope, store, Dispatchers.IO) }

    val chat by lazy {
        Chat(scope, opener, store, ChatFile(File(filesDir, "chat.json")), Dispatchers.IO)
    }

    override fun onCreate() {
        super.onCreate()
        library.start()
        chat.restore()
    }

    override fun onTrimMemory(level: Int) {
        super.onTrimMemory(level)
        // Nobody is looking, and the process is on the list of those to be ended.
        if (level >= TRIM_MEMORY_BACKGROUND) chat.rest() else chat.save()
    }
}
