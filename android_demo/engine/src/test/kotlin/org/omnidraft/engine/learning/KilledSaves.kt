package org.omnidraft.engine.learning

import java.nio.ByteBuffer
import java.nio.file.Path
import kotlin.io.path.listDirectoryEntries
import kotlin.random.Random

/** Adapters that are made of one number, so that a mixture of two would show. */
internal object KilledSaves {
    private const val NUMBERS = 250_000

    private fun content(number: Int): ByteArray =
        ByteBuffer.allocate(4 * NUMBERS).also { while (it.hasRemaining()) it.putInt(number) }.array()

    /** The number of an adapter that is whole. */
    private fun numberOf(content: ByteArray): Int {
        val number = ByteBuffer.wrap(content).getInt()
        check(content contentEquals content(number)) { "the file is torn" }
        return number
    }

    /** Saves for ever, and tells each number once its save has ended. */
    @JvmStatic
    fun main(arguments: Array<String>) {
        val folder = AdapterFolder(Path.of(arguments[0]))
        var number = arguments[1].toInt()
        while (true) {
            number += 1
            folder.save("work", content(number))
            println(number)
        }
    }

    /**
     * Kill a process that saves, over and over, and look at what it leaves.
     *
     * @return how many kills hit a save half-way.
     * @throws IllegalStateException a file was torn, or a save that had ended was lost.
     */
    fun kill(folder: Path, kills: Int, random: Random): Int {
        var number = 0
        var torn = 0
        repeat(kills) {
            val child = ProcessBuilder(
                ProcessHandle.current().info().command().get(), "-cp", System.getProperty("java.class.path"),
                "-Xshare:auto", "-XX:TieredStopAtLevel=1", KilledSaves::class.java.name,
                "$folder", "$number",
            ).redirectError(ProcessBuilder.Redirect.DISCARD).start()
            val reports = child.inputStream.bufferedReader()
            // Its first save has ended, so that the kill does not hit what comes before saving.
            var ended = checkNotNull(reports.readLine()) { "the child ended by itself" }.toInt()
            Thread.sleep(random.nextLong(20))
            child.toHandle().destroyForcibly() // by the process itself it would close the reports
            child.waitFor()
            reports.forEachLine { line -> line.toIntOrNull()?.let { ended = maxOf(ended, it) } }
            torn += folder.listDirectoryEntries(".*.tmp").size
            val found = numberOf(checkNotNull(AdapterFolder(folder).read("work")))
            // The save that was under way is there whole or not at all.
            check(found == ended || found == ended + 1) { "$found is there, $ended was saved" }
            check(folder.listDirectoryEntries(".*.tmp").isEmpty()) { "leftovers stay" }
            number = found
        }
        return torn
    }
}
