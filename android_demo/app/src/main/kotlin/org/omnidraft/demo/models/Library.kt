package org.omnidraft.demo.models

import java.io.IOException
import kotlin.coroutines.CoroutineContext
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext

/** An import that is going on: bytes copied, of how many; 0: not known yet. */
data class Importing(val name: String, val done: Long = 0, val total: Long = 0)

/** What the user is told of models. */
sealed interface LibraryNotice {
    data class Imported(val name: String) : LibraryNotice

    /** An earlier process ended while it copied [names]; what there was of them is deleted. */
    data class CleanedUp(val names: List<String>) : LibraryNotice

    data class Cancelled(val name: String) : LibraryNotice

    data class Problem(val message: String) : LibraryNotice
}

/** Everything that the models' screen shows. */
data class LibraryState(
    val models: List<StoredModel> = emptyList(),
    val importing: Importing? = null,
    val notice: LibraryNotice? = null,
) {
    /** What can answer. */
    val targets: List<StoredModel>
        get() = models.filter { it.kind == Kind.MODEL }
}

/**
 * The models' screen without its views. It outlives the activity.
 *
 * All calls come from the thread of [scope]; files are read and written in [io].
 */
class Library(
    private val scope: CoroutineScope,
    private val store: ModelStore,
    private val io: CoroutineContext,
) {
    private val current = MutableStateFlow(LibraryState())
    val state: StateFlow<LibraryState> = current

    private var copying: Job? = null

    /** Removes what an earlier process left behind, and lists what is there. */
    fun start() = scope.launch {
        val left = withContext(io) { store.cleanUp() }
        if (left.isNotEmpty()) tell(LibraryNotice.CleanedUp(left))
        refresh()
    }

    /** Imports a model; does nothing while another is imported. */
    fun import(source: Source) {
        if (copying?.isActive == true) return
        current.update { it.copy(importing = Importing(source.name), notice = null) }
        copying = scope.launch {
            var notice: LibraryNotice = LibraryNotice.Cancelled(source.name)
            try {
                val model = withContext(io) {
                    store.import(source) { done, total ->
                        ensureActive()
                        current.update { it.copy(importing = Importing(source.name, done, total)) }
                    }
                }
                notice = LibraryNotice.Imported(model.name)
            } catch (error: ImportException) {
                notice = LibraryNotice.Problem(error.message.orEmpty())
            } finally {
                // It is over when the list has it, and the next import can begin at once.
                withContext(NonCancellable) { refresh() }
                current.update { it.copy(importing = null, notice = notice) }
            }
        }
    }

    /** Ends the import that is going on; nothing of it stays. */
    fun cancelImport() {
        copying?.cancel()
    }

    fun delete(name: String) = scope.launch {
        try {
            withContext(io) { store.delete(name) }
        } catch (error: IOException) {
            tell(LibraryNotice.Problem(error.message.orEmpty()))
        }
        refresh()
    }

    private suspend fun refresh() {
        val models = withContext(io) { store.list() }
        current.update { it.copy(models = models) }
    }

    private fun tell(notice: LibraryNotice) = current.update { it.copy(notice = notice) }
}
