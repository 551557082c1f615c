package org.omnidraft.demo

import android.content.ContentProvider
import android.content.ContentValues
import android.database.Cursor
import android.database.MatrixCursor
import android.net.Uri
import android.os.ParcelFileDescriptor
import android.provider.DocumentsContract
import android.provider.DocumentsContract.Document
import java.io.File

/** A provider of documents: a tree named "root" with [files], by their paths. */
class FakeDocuments : ContentProvider() {
    var files: Map<String, ByteArray> = emptyMap()

    /** What it throws where it is asked for names, and whether it is when asked for those in a folder. */
    var refusal: RuntimeException? = null
    var refusesChildrenOnly = false

    /** It does not know the names of documents, or the documents. */
    var forgets: Set<String> = emptySet()

    override fun onCreate() = true

    override fun query(
        uri: Uri,
        projection: Array<out String>?,
        selection: String?,
        selectionArgs: Array<out String>?,
        sortOrder: String?,
    ): Cursor {
        val columns = checkNotNull(projection)
        val id = DocumentsContract.getDocumentId(uri)
        if (!refusesChildrenOnly || uri.lastPathSegment == "children") refusal?.let { throw it }
        if (uri.lastPathSegment != "children") return MatrixCursor(columns).apply { addRow(listOf(id)) }
        return MatrixCursor(columns).apply {
            val under = files.keys.map { "root/$it" }.filter { it.startsWith("$id/") }
            for (name in under.map { it.removePrefix("$id/").substringBefore('/') }.distinct()) {
                val isFile = "$id/$name".removePrefix("root/") in files
                val type = if (isFile) "application/octet-stream" else Document.MIME_TYPE_DIR
                val row = listOf("$id/$name", name, type)
                addRow(row.zip(columns) { value, column -> value.takeIf { column !in forgets } })
            }
        }
    }

    override fun openFile(uri: Uri, mode: String): ParcelFileDescriptor {
        val path = DocumentsContract.getDocumentId(uri).removePrefix("root/")
        val file = File.createTempFile("document", null).apply { writeBytes(files.getValue(path)) }
        return ParcelFileDescriptor.open(file, ParcelFileDescriptor.MODE_READ_ONLY)
    }

    override fun getType(uri: Uri): String? = null

    override fun insert(uri: Uri, values: ContentValues?): Uri? = null

    override fun delete(uri: Uri, selection: String?, args: Array<out String>?) = 0

    override fun update(
        uri: Uri,
        values: ContentValues?,
        selection: String?,
        args: Array<out String>?,
    ) = 0

    companion object {
        const val AUTHORITY = "org.omnidraft.documents"
    }
}
