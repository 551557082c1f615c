package org.omnidraft.demo.models

import java.io.IOException
import java.io.InputStream
import java.util.zip.ZipEntry
import java.util.zip.ZipException
import java.util.zip.ZipInputStream

/** Where a model is imported from. */
interface Source {
    /** What to call the model. */
    val name: String

    /**
     * Calls [visit] with the relative path of each file and its content, until it returns false.
     * The content is open only during the call.
     *
     * Throws [IOException].
     */
    fun visit(visit: (path: String, content: InputStream) -> Boolean)
}

/** A .zip archive, which [open] opens anew for each visit. */
class ZipSource(override val name: String, private val open: () -> InputStream) : Source {
    override fun visit(visit: (path: String, content: InputStream) -> Boolean) {
        var entries = 0
        ZipInputStream(open().buffered()).use { zip ->
            while (true) {
                val entry = zip.next() ?: break
                entries++
                if (!entry.isDirectory && !visit(entry.name, zip)) return
            }
        }
        if (entries == 0) throw ZipException("$name is no .zip archive")
    }

    private fun ZipInputStream.next(): ZipEntry? = try {
        nextEntry
    } catch (_: IllegalArgumentException) { // said of names, and of nothing else
        throw ZipException("the name of a file in it is not in UTF-8")
    }
}
