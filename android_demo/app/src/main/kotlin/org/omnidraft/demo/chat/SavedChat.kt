package org.omnidraft.demo.chat

import java.io.File
import java.io.IOException
import kotlinx.serialization.SerializationException
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.omnidraft.demo.models.writeWhole

/** What outlives the process. */
@Serializable
data class SavedChat(
    val choice: Choice? = null,
    val turns: List<Turn> = emptyList(),
    val draft: Boolean = true,
    val learn: Boolean = false,
)

/** The file that holds a [SavedChat]. */
class ChatFile(private val file: File) {
    /** Writes it, whole or not at all. Throws [IOException]. */
    fun write(chat: SavedChat) =
        file.writeWhole { it.write(Json.encodeToString(chat).toByteArray()) }

    /**
     * Reads it; null where there is none.
     *
     * Throws [DamagedException] where it is unreadable, after setting it aside.
     */
    fun read(): SavedChat? {
        if (!file.exists()) return null
        try {
            return Json.decodeFromString<SavedChat>(file.readText())
        } catch (error: SerializationException) {
            setAside(error)
        } catch (error: IOException) {
            setAside(error)
        }
    }

    private fun setAside(cause: Exception): Nothing {
        file.renameTo(File(file.path + ".damaged"))
        throw DamagedException(cause)
    }

    class DamagedException(cause: Exception) : Exception(cause)
}
