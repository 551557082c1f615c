package org.omnidraft.demo.models

import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.io.OutputStream

/**
 * Writes a file to a temporary name, syncs it and renames it: it is there whole or as before.
 *
 * Throws [IOException].
 */
fun File.writeWhole(write: (OutputStream) -> Unit) {
    val temporary = File("$path.tmp")
    try {
        FileOutputStream(temporary).use {
            write(it)
            it.fd.sync()
        }
        if (!temporary.renameTo(this)) throw IOException("$temporary cannot be renamed to $this")
    } finally {
        temporary.delete()
    }
}
