package org.omnidraft.demo.ui

import android.content.ContentResolver
import android.net.Uri
import android.provider.DocumentsContract
import android.provider.DocumentsContract.Document
import java.io.FileNotFoundException
import java.io.IOException
import java.io.InputStream
import org.omnidraft.demo.models.Kind
import org.omnidraft.demo.models.Source

/** A folder that the user chose in the system's file picker. */
class DocumentTree(
    private val resolver: ContentResolver,
    private val tree: Uri,
    override val name: String,
) : Source {
    private class Child(val id: String, val path: String, val isFolder: Boolean)

    override fun visit(visit: (path: String, content: InputStream) -> Boolean) {
        visitFolder(DocumentsContract.getTreeDocumentId(tree), "", DEPTH, visit)
    }

    private fun visitFolder(
        id: String,
        path: String,
        depth: Int,
        visit: (path: String, content: InputStream) -> Boolean,
    ): Boolean {
        // Manifests first: nothing else needs to be opened to find one.
        val children = children(id, path).sortedBy { Kind.of(it.path.substringAfterLast('/')) == null }
        val (folders, files) = children.partition { it.isFolder }
        for (file in files) {
            val uri = DocumentsContract.buildDocumentUriUsingTree(tree, file.id)
            if (!resolver.open(uri).use { visit(file.path, it) }) return false
        }
        if (depth == 0) return true
        return folders.all { visitFolder(it.id, "${it.path}/", depth - 1, visit) }
    }

    private fun children(id: String, path: String): List<Child> = inWords {
        val uri = DocumentsContract.buildChildDocumentsUriUsingTree(tree, id)
        val rows = resolver.query(uri, COLUMNS, null, null, null)
            ?: throw IOException("its files cannot be listed")
        rows.use {
            buildList {
                while (it.moveToNext()) {
                    val (document, name, type) = COLUMNS.indices.map { column ->
                        it.getString(column) ?: throw IOException("its files are listed without their names")
                    }
                    add(Child(document, path + name, type == Document.MIME_TYPE_DIR))
                }
            }
        }
    }

    private companion object {
        /** How many folders deep files are looked for. */
        const val DEPTH = 3
        val COLUMNS = arrayOf(
            Document.COLUMN_DOCUMENT_ID,
            Document.COLUMN_DISPLAY_NAME,
            Document.COLUMN_MIME_TYPE,
        )
    }
}

/** Opens a document. Throws [IOException]. */
fun ContentResolver.open(document: Uri): InputStream = inWords {
    openInputStream(document) ?: throw FileNotFoundException("its provider gives nothing")
}

/** What the file picker calls a document. */
fun ContentResolver.displayName(document: Uri): String {
    val told = try {
        inWords {
            query(document, arrayOf(Document.COLUMN_DISPLAY_NAME), null, null, null)?.use {
                if (it.moveToFirst()) it.getString(0) else null
            }
        }
    } catch (_: IOException) {
        null // a name is no reason not to import it
    }
    return told ?: document.lastPathSegment.orEmpty()
}

/** Providers are other apps, and throw what they like. */
private fun <T> inWords(call: () -> T): T = try {
    call()
} catch (error: RuntimeException) {
    throw IOException(error.message ?: "its provider refuses", error)
}
