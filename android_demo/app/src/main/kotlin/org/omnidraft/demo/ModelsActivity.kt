package org.omnidraft.demo

import android.app.Activity
import android.app.AlertDialog
import android.content.ActivityNotFoundException
import android.content.Intent
import android.net.Uri
import android.os.Bundle
import android.provider.DocumentsContract
import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.ArrayAdapter
import android.widget.Button
import android.widget.ProgressBar
import android.widget.Spinner
import android.widget.TextView
import android.widget.Toast
import android.widget.Toolbar
import kotlinx.coroutines.Job
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch
import org.omnidraft.demo.chat.Choice
import org.omnidraft.demo.models.Importing
import org.omnidraft.demo.models.LibraryState
import org.omnidraft.demo.models.StoredModel
import org.omnidraft.demo.models.ZipSource
import org.omnidraft.demo.ui.DocumentTree
import org.omnidraft.demo.ui.displayName
import org.omnidraft.demo.ui.megabytes
import org.omnidraft.demo.ui.noticeText
import org.omnidraft.demo.ui.open
import org.omnidraft.demo.ui.padForSystemBars
import org.omnidraft.demo.ui.setTextIfNew

/** Imports models, and chooses which to open. It shows the state of [DemoApplication.library]. */
class ModelsActivity : Activity() {
    private val scope = MainScope()
    private val library get() = (application as DemoApplication).library
    private val chat get() = (application as DemoApplication).chat
    private var showing: Job? = null
    private var models: List<StoredModel>? = null

    private val target by lazy { findViewById<Spinner>(R.id.target) }
    private val drafter by lazy { findViewById<Spinner>(R.id.drafter) }
    private val stored by lazy { findViewById<ViewGroup>(R.id.stored) }

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.models)
        setActionBar(findViewById<Toolbar>(R.id.toolbar))
        actionBar?.setDisplayHomeAsUpEnabled(true)
        findViewById<View>(R.id.root).padForSystemBars()
        onClick(R.id.import_folder) { pick(Intent(Intent.ACTION_OPEN_DOCUMENT_TREE), FOLDER) }
        onClick(R.id.import_archive) {
            val archive = Intent(Intent.ACTION_OPEN_DOCUMENT)
                .addCategory(Intent.CATEGORY_OPENABLE)
                .setType("*/*")
                .putExtra(Intent.EXTRA_MIME_TYPES, ARCHIVE_TYPES)
            pick(archive, ARCHIVE)
        }
        onClick(R.id.cancel_import) { library.cancelImport() }
        onClick(R.id.open) { openChosen() }
    }

    private fun onClick(id: Int, action: () -> Unit) =
        findViewById<Button>(id).setOnClickListener { action() }

    override fun onStart() {
        super.onStart()
        showing = scope.launch { library.state.collect(::show) }
    }

    override fun onStop() {
        showing?.cancel()
        super.onStop()
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    @Suppress("DEPRECATION") // What replaces it is in a library that the demo does without.
    private fun pick(intent: Intent, request: Int) {
        try {
            startActivityForResult(intent, request)
        } catch (_: ActivityNotFoundException) {
            Toast.makeText(this, R.string.no_picker, Toast.LENGTH_LONG).show()
        }
    }

    @Deprecated("Deprecated in Java")
    override fun onActivityResult(requestCode: Int, resultCode: Int, data: Intent?) {
        val uri = data?.data
        if (resultCode != RESULT_OK || uri == null) return
        when (requestCode) {
            FOLDER -> importFolder(uri)
            ARCHIVE -> importArchive(uri)
        }
    }

    private fun importFolder(tree: Uri) {
        val id = DocumentsContract.getTreeDocumentId(tree)
        val folder = DocumentsContract.buildDocumentUriUsingTree(tree, id)
        library.import(DocumentTree(contentResolver, tree, contentResolver.displayName(folder)))
    }

    private fun importArchive(document: Uri) {
        val name = contentResolver.displayName(document).removeSuffix(".zip")
        val resolver = contentResolver
        library.import(ZipSource(name) { resolver.open(document) })
    }

    private fun openChosen() {
        val state = library.state.value
        val chosen = state.targets.getOrNull(target.selectedItemPosition) ?: return
        val drafts = state.models.getOrNull(drafter.selectedItemPosition - 1)
        chat.open(Choice(chosen.name, drafts?.name))
        finish()
    }

    private fun show(state: LibraryState) {
        findViewById<TextView>(R.id.notice).setTextIfNew(state.notice?.let(::noticeText))
        findViewById<View>(R.id.open).isEnabled = state.targets.isNotEmpty()
        show(state.importing)
        if (state.models != models) showModels(state)
    }

    private fun show(importing: Importing?) {
        val idle = importing == null
        findViewById<View>(R.id.importing).visibility = if (idle) View.GONE else View.VISIBLE
        findViewById<View>(R.id.import_folder).isEnabled = idle
        findViewById<View>(R.id.import_archive).isEnabled = idle
        if (importing == null) return
        val text = getString(
            R.string.importing,
            importing.name,
            megabytes(importing.done),
            megabytes(importing.total),
        )
        findViewById<TextView>(R.id.importing_text).setTextIfNew(text)
        val bar = findViewById<ProgressBar>(R.id.importing_bar)
        bar.isIndeterminate = importing.total == 0L
        if (importing.total > 0) bar.progress = (importing.done * bar.max / importing.total).toInt()
    }

    private fun showModels(state: LibraryState) {
        models = state.models
        val targets = state.targets.map { it.name }
        target.fill(targets.ifEmpty { listOf(getString(R.string.no_target)) })
        drafter.fill(listOf(getString(R.string.no_drafter)) + state.models.map { it.name })
        val choice = chat.state.value.choice
        target.setSelection(maxOf(0, targets.indexOf(choice?.target)))
        drafter.setSelection(state.models.indexOfFirst { it.name == choice?.drafter } + 1)
        stored.removeAllViews()
        state.models.forEach(::addRow)
    }

    private fun Spinner.fill(names: List<String>) {
        adapter = ArrayAdapter(context, android.R.layout.simple_spinner_item, names).apply {
            setDropDownViewResource(android.R.layout.simple_spinner_dropdown_item)
        }
    }

    private fun addRow(model: StoredModel) {
        val row = LayoutInflater.from(this).inflate(R.layout.stored_model, stored, false)
        row.findViewById<TextView>(R.id.name).text =
            getString(R.string.stored_model, model.name, megabytes(model.size))
        row.findViewById<View>(R.id.delete).apply {
            contentDescription = getString(R.string.delete_model, model.name)
            setOnClickListener { askToDelete(model) }
        }
        stored.addView(row)
    }

    private fun askToDelete(model: StoredModel) {
        AlertDialog.Builder(this)
            .setMessage(getString(R.string.delete_question, model.name))
            .setPositiveButton(R.string.delete) { _, _ -> library.delete(model.name) }
            .setNegativeButton(R.string.keep, null)
            .show()
    }

    private companion object {
        const val FOLDER = 1
        const val ARCHIVE = 2
        val ARCHIVE_TYPES = arrayOf("application/zip", "application/octet-stream")
    }
}
