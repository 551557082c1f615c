package org.omnidraft.demo.engine

import android.content.Context
import java.io.File
import org.omnidraft.android.PhoneHeat
import org.omnidraft.android.phoneOptions
import org.omnidraft.engine.Engine
import org.omnidraft.engine.text.Message

/** The shortest way to an answer: models in the app's storage, a question, and its tokens. */
suspend fun askOnce(context: Context, question: String, show: (String) -> Unit) {
    val models = File(context.filesDir, "models")
    PhoneHeat(context).use { heat ->
        val options = phoneOptions(context, heat, adapter = null)
        val target = File(models, "smollm2-135m").toPath()
        val drafter = File(models, "drafter").toPath()
        Engine.open(target, drafter, options).use { engine ->
            engine.answer(listOf(Message("user", question))).collect { piece -> show(piece.text) }
        }
    }
}
