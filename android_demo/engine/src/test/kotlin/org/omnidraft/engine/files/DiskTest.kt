package org.omnidraft.engine.files

import java.io.IOException
import java.nio.file.NoSuchFileException
import java.nio.file.Path
import kotlin.random.Random
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** What is left of a file wherever its replacement is broken off. */
class DiskTest {
    /** The power went, or the process was killed: nothing more is done, no cleaning up either. */
    private class Broken : Error()

    /**
     * A disk in memory that does [calls] calls and no more, of the last one perhaps a part.
     *
     * It keeps no more than it promises: a name's change may be lost until the names are flushed, a
     * file's content until the file is.
     */
    private class BreakingDisk(private val calls: Int, private val random: Random) : Disk {
        class Content(var bytes: ByteArray, var flushed: Boolean)

        private val names = HashMap<Path, Content>()
        private val flushed = HashMap<Path, Content>()
        private var done = 0
        var failing = false

        private fun call(lastPart: () -> Unit = {}) {
            if (done++ < calls) return
            if (failing) throw IOException("no space left")
            lastPart()
            throw Broken()
        }

        fun put(file: Path, content: ByteArray) {
            Content(content, true).let { names[file] = it; flushed[file] = it }
        }

        override fun write(file: Path, content: ByteArray) {
            val written = Content(ByteArray(0), false)
            names[file] = written
            call { written.bytes = content.copyOf(random.nextInt(content.size)) }
            written.bytes = content
        }

        override fun flush(file: Path) {
            call()
            names.getValue(file).flushed = true
        }

        override fun rename(from: Path, to: Path) {
            call()
            names[to] = names.remove(from) ?: throw NoSuchFileException("$from")
        }

        override fun flushNames(folder: Path) {
            call()
            flushed.clear()
            flushed.putAll(names)
        }

        override fun delete(file: Path) {
            names.remove(file)
        }

        /** What a file holds once the process was killed; null: there is none. */
        fun afterKill(file: Path): ByteArray? = names[file]?.bytes

        /** What it may hold once the power went. */
        fun afterPowerLoss(file: Path): List<ByteArray?> = listOf(names[file], flushed[file]).map {
            if (it == null || it.flushed) it?.bytes else it.bytes.copyOf(it.bytes.size / 2)
        }
    }

    private val file = Path.of("folder", "a.adapter")
    private val temporary = Path.of("folder", ".a.adapter.tmp")
    private val old = ByteArray(100) { 1 }
    private val new = ByteArray(200) { 2 }

    private fun name(content: ByteArray?) = when {
        content contentEquals old -> "old"
        content contentEquals new -> "new"
        else -> "torn"
    }

    @Test
    fun `the file is the old one or the new one wherever a save is broken off`() {
        val random = Random(1)
        val seen = ArrayList<String>()
        for (calls in 0..CALLS) {
            val disk = BreakingDisk(calls, random).apply { put(file, old) }
            val broken = runCatching { disk.replace(file, temporary, new) }.isFailure
            val kept = disk.afterPowerLoss(file).map(::name).toSet()
            assertTrue("torn" !in kept && name(disk.afterKill(file)) != "torn") { "after $calls calls" }
            assertEquals(calls < CALLS, broken)
            if (!broken) assertEquals(setOf("new"), kept)
            seen += name(disk.afterKill(file))
        }
        assertEquals(listOf("old", "old", "old", "new", "new"), seen)
    }

    @Test
    fun `a save that fails leaves the old file, and nothing beside it`() {
        for (calls in 0 until CALLS - 1) {
            val disk = BreakingDisk(calls, Random(1)).apply { put(file, old) }
            disk.failing = true
            assertThrows(IOException::class.java) { disk.replace(file, temporary, new) }
            assertEquals("old", name(disk.afterKill(file)))
            assertEquals(null, disk.afterKill(temporary))
        }
    }

    private companion object {
        /** Of a whole save: write, flush, rename, flush the names. */
        const val CALLS = 4
    }
}
