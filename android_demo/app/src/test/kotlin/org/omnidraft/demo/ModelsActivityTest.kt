package org.omnidraft.demo

import android.content.Intent
import android.database.sqlite.SQLiteException
import android.net.Uri
import android.provider.DocumentsContract.Document
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.Spinner
import android.widget.TextView
import java.io.ByteArrayInputStream
import java.io.File
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.omnidraft.demo.chat.Choice
import org.omnidraft.demo.chat.Phase
import org.omnidraft.demo.models.Kind
import org.omnidraft.demo.models.LibraryNotice
import org.omnidraft.demo.models.StoredModel
import org.omnidraft.demo.models.bundle
import org.omnidraft.demo.models.zip
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController
import org.robolectric.annotation.Config
import org.robolectric.shadows.ShadowAlertDialog

@RunWith(RobolectricTestRunner::class)
class ModelsActivityTest {
    private val app get() = RuntimeEnvironment.getApplication() as TestApplication
    private lateinit var controller: ActivityController<ModelsActivity>
    private val activity get() = controller.get()

    private fun start() {
        controller = Robolectric.buildActivity(ModelsActivity::class.java).setup().visible()
        idle()
    }

    private fun <V : View> view(id: Int): V = activity.findViewById(id)

    private fun notice() = view<TextView>(R.id.notice).text.toString()

    /** Answers the picker that a button opens. */
    private fun pick(button: Int, uri: Uri) {
        view<Button>(button).performClick()
        val request = shadowOf(activity).nextStartedActivityForResult
        shadowOf(activity).receiveResult(request.intent, -1, Intent().setData(uri))
    }

    private fun startWith(vararg models: Pair<String, Kind>) {
        models.forEach { (name, kind) -> app.store(name, kind) }
        app.library.start()
        await("the models are listed") { app.library.state.value.models.size == models.size }
        start()
    }

    @Test
    fun `without models it says how to get one`() {
        start()
        assertFalse(view<Button>(R.id.open).isEnabled)
        assertEquals(app.getString(R.string.no_target), view<Spinner>(R.id.target).selectedItem)
    }

    @Test
    fun `an archive is imported`() {
        start()
        val uri = Uri.parse("content://documents/small.zip")
        val archive = zip(bundle(mapOf("model.onnx" to ByteArray(10)), Kind.MODEL))
        shadowOf(app.contentResolver).registerInputStreamSupplier(uri) { ByteArrayInputStream(archive) }
        pick(R.id.import_archive, uri)
        await("it is imported") { app.library.state.value.models.isNotEmpty() }
        assertEquals(app.getString(R.string.notice_imported, "small"), notice())
        assertEquals("small", view<Spinner>(R.id.target).selectedItem)
    }

    @Test
    fun `an archive that is none is refused in words`() {
        start()
        val uri = Uri.parse("content://documents/letter.zip")
        shadowOf(app.contentResolver)
            .registerInputStreamSupplier(uri) { ByteArrayInputStream("Dear reader".toByteArray()) }
        pick(R.id.import_archive, uri)
        await("it is refused") { "letter" in notice() }
        assertTrue(app.library.state.value.models.isEmpty())
    }

    @Test
    fun `a folder is imported`() {
        val files = bundle(mapOf("a/model.onnx" to ByteArray(10)))
        Robolectric.setupContentProvider(FakeDocuments::class.java, FakeDocuments.AUTHORITY).files = files
        start()
        pick(R.id.import_folder, Uri.parse("content://${FakeDocuments.AUTHORITY}/tree/root"))
        await("it is imported") { app.library.state.value.models.isNotEmpty() }
        assertEquals(app.getString(R.string.notice_imported, "root"), notice())
        assertTrue(File(app.filesDir, "models/root/a/model.onnx").isFile)
    }

    @Test
    fun `a provider of documents that fails or forgets is said in words`() {
        val provider = Robolectric.setupContentProvider(FakeDocuments::class.java, FakeDocuments.AUTHORITY)
        provider.files = bundle(mapOf("a/model.onnx" to ByteArray(10)))
        start()
        val failures = listOf(
            SecurityException("no"), IllegalStateException("no"), NullPointerException("no"), SQLiteException("no"),
        )
        val moods: List<() -> Unit> = failures.flatMap { failure ->
            listOf(true, false).map { children ->
                { provider.refusal = failure; provider.refusesChildrenOnly = children }
            }
        } + DOCUMENT_COLUMNS.map { column -> { provider.refusal = null; provider.forgets = setOf(column) } }
        for (mood in moods) {
            mood()
            pick(R.id.import_folder, Uri.parse("content://${FakeDocuments.AUTHORITY}/tree/root"))
            await("it is said") { app.library.state.value.importing == null }
            assertTrue("${app.library.state.value}", app.library.state.value.notice is LibraryNotice.Problem)
            assertEquals(emptyList<StoredModel>(), app.library.state.value.models)
        }
    }

    @Test
    fun `what was chosen is opened`() {
        startWith("drafter" to Kind.BUNDLE, "target" to Kind.MODEL)
        view<Spinner>(R.id.drafter).setSelection(1)
        view<Button>(R.id.open).performClick()
        await("it is open") { app.chat.state.value.phase == Phase.Ready }
        assertEquals(Choice("target", "drafter"), app.chat.state.value.choice)
        assertTrue(activity.isFinishing)
    }

    @Test
    fun `a model is deleted when the user confirms it`() {
        startWith("target" to Kind.MODEL)
        val delete = view<ViewGroup>(R.id.stored).findViewById<View>(R.id.delete)
        assertTrue("target" in delete.contentDescription)
        delete.performClick()
        idle()
        assertEquals(1, app.library.state.value.models.size)
        ShadowAlertDialog.getLatestAlertDialog().getButton(-1).performClick()
        await("it is deleted") { app.library.state.value.models.isEmpty() }
        assertEquals(0, view<ViewGroup>(R.id.stored).childCount)
    }

    @Test
    fun `an import that did not finish is said`() {
        File(app.filesDir, "models/.importing-large").mkdirs()
        app.library.start()
        start()
        await("it is said") { "large" in notice() }
        assertFalse(File(app.filesDir, "models/.importing-large").exists())
    }

    private companion object {
        val DOCUMENT_COLUMNS =
            listOf(Document.COLUMN_DOCUMENT_ID, Document.COLUMN_DISPLAY_NAME, Document.COLUMN_MIME_TYPE)
    }

    @Test
    @Config(qualifiers = "w320dp-h480dp", fontScale = 2.0f)
    fun `everything can be touched and has a name, with large text on a small screen`() {
        startWith("target" to Kind.MODEL)
        layOut(activity)
        checkTouchable(view(R.id.root))
    }
}
