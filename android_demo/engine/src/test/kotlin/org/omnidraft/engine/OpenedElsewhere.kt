package org.omnidraft.engine

import java.nio.file.Path
import kotlinx.coroutines.runBlocking

/** A process that opens models and prints the sentence by which it failed, as libraries are loaded once in a process. */
object OpenedElsewhere {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val (target, drafter, operators) = arguments
        try {
            runBlocking { Engine.open(Path.of(target), Path.of(drafter), EngineOptions(operators, threads = 1)) }.close()
            println("opened")
        } catch (error: OmniDraftException) {
            println("refused: ${error.message}")
        }
    }
}
