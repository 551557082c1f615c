package org.omnidraft.android

import android.content.Context
import java.io.File
import org.omnidraft.engine.EngineOptions

private const val CONTEXT_LENGTH = 2048
private const val MOST_THREADS = 4

/**
 * Options that suit a phone: half of its cores, of which the others are slow as a rule, and the
 * memory that is free now. What is learned is kept in the app's storage.
 *
 * @param adapter name of what the drafter learns; null: it does not learn.
 */
fun phoneOptions(context: Context, heat: PhoneHeat, adapter: String?) = EngineOptions(
    contextLength = CONTEXT_LENGTH,
    threads = (Runtime.getRuntime().availableProcessors() / 2).coerceIn(1, MOST_THREADS),
    memoryLimit = PhoneMemory.limit(context),
    memory = PhoneMemory.shared,
    state = File(context.filesDir, "omnidraft").toPath(),
    adapter = adapter,
    heat = heat,
)
