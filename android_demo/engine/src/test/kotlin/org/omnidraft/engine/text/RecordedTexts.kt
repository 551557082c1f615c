package org.omnidraft.engine.text

import java.nio.ByteBuffer
import java.security.MessageDigest
import java.time.Clock
import java.time.LocalDateTime
import java.time.ZoneOffset
import kotlin.io.path.readText
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.omnidraft.engine.Fixtures
import org.omnidraft.engine.OmniDraftException
import org.omnidraft.engine.files.toHex

/** What record_text.py recorded of a tokenizer. */
@Serializable
class RecordedTexts(
    @SerialName("vocab_size") val vocabSize: Int,
    val bos: Int?,
    @SerialName("add_bos") val addBos: Boolean,
    val eos: List<Int>,
    val surfaces: String,
    val texts: List<OfText>,
    val bytes: List<OfBytes>,
    val streams: List<OfStream>,
    val chats: List<List<String?>>,
) {
    @Serializable
    class OfText(
        val text: String,
        val literal: List<Int>,
        val special: List<Int>,
        val segment: List<Int>?,
        val decoded: String,
    )

    @Serializable
    class OfBytes(val hex: String, val segment: List<Int>?)

    @Serializable
    class OfStream(val ids: List<Int>, val pieces: List<String>)

    fun compare(tokenizer: Tokenizer) {
        assertEquals(vocabSize, tokenizer.vocabSize)
        assertEquals(bos, tokenizer.bosId)
        assertEquals(addBos, tokenizer.addBos)
        assertEquals(eos, tokenizer.eosIds.sorted())
        assertEquals(surfaces, digest(tokenizer), "surfaces of all tokens")
        for (each in texts) {
            val place = Json.encodeToString(each.text)
            assertIds(each.literal, tokenizer.encode(each.text), place)
            assertIds(each.special, tokenizer.encode(each.text, parseSpecial = true, addBos = false), place)
            assertIds(each.segment, tokenizer.segment(each.text.encodeToByteArray()), place)
            assertEquals(each.decoded, tokenizer.decode(each.literal.toIntArray()))
        }
        for (each in bytes) {
            val data = each.hex.chunked(2).map { it.toInt(16).toByte() }.toByteArray()
            assertIds(each.segment, tokenizer.segment(data), each.hex)
        }
        for (each in streams) {
            val stream = TextStream()
            val pieces = each.ids.map { stream.push(tokenizer.shownBytes(it)) } + stream.finish()
            assertEquals(each.pieces, pieces)
            assertEquals(each.pieces.joinToString(""), tokenizer.decode(each.ids.toIntArray()))
        }
        compareChats(tokenizer)
    }

    private fun compareChats(tokenizer: Tokenizer) {
        assertEquals(chats.isNotEmpty(), tokenizer.hasChatTemplate)
        val all = conversations.flatMap { messages -> listOf(false, true).map { messages to it } }
        for ((conversation, expected) in all.zip(chats)) {
            val (messages, opens) = conversation
            val place = "$messages, $opens"
            val text = try {
                tokenizer.applyChat(messages, opens)
            } catch (_: OmniDraftException) {
                null
            }
            assertEquals(expected[0], text?.let(::sha256), place)
            if (text == null) continue
            val ids = tokenizer.encodeChat(messages, opens).joinToString(",")
            assertEquals(expected[1], sha256(ids), place)
        }
    }

    private fun digest(tokenizer: Tokenizer): String {
        val digest = MessageDigest.getInstance("SHA-256")
        fun add(part: ByteArray?) {
            digest.update(if (part == null) 0 else 1)
            if (part == null) return
            digest.update(ByteBuffer.allocate(4).putInt(part.size).array())
            digest.update(part)
        }
        for (id in 0 until tokenizer.vocabSize) {
            add(tokenizer.surface(id))
            add(tokenizer.shownBytes(id))
            digest.update(if (tokenizer.isByteToken(id)) 1 else 0)
        }
        return digest.digest().toHex()
    }

    companion object {
        /** The moment at which everything was recorded. */
        val clock: Clock = Clock.fixed(LocalDateTime.of(2024, 7, 6, 15, 4, 5).toInstant(ZoneOffset.UTC), ZoneOffset.UTC)

        private val conversations: List<List<Message>> by lazy {
            val text = Fixtures.resources.resolve("text/conversations.json").readText()
            Json.decodeFromString<List<List<Map<String, String>>>>(text)
                .map { turns -> turns.map { Message(it.getValue("role"), it.getValue("content")) } }
        }

        private fun sha256(text: String) = org.omnidraft.engine.files.sha256(text.encodeToByteArray()).take(16)

        private fun assertIds(expected: List<Int>?, found: IntArray?, place: String) =
            assertArrayEquals(expected?.toIntArray(), found, place)
    }
}
