package org.omnidraft.engine.text

import java.io.ByteArrayOutputStream

private const val REPLACEMENT = '\uFFFD'

/**
 * What stands at a place of bytes that may be UTF-8.
 *
 * @return the length of a whole character; negative, that of the longest beginning of one that
 *   cannot go on as it does, or of a byte that begins none; 0 where the bytes end within a character.
 */
internal fun characterAt(data: ByteArray, at: Int): Int {
    val first = data[at].toInt() and 0xff
    val count = when (first) {
        in 0x00..0x7f -> return 1
        in 0xc2..0xdf -> 2
        in 0xe0..0xef -> 3
        in 0xf0..0xf4 -> 4
        else -> return -1
    }
    for (i in 1 until count) {
        if (at + i >= data.size) return 0
        val next = data[at + i].toInt() and 0xff
        val least = if (i > 1) 0x80 else when (first) { 0xe0 -> 0xa0; 0xf0 -> 0x90; else -> 0x80 }
        val most = if (i > 1) 0xbf else when (first) { 0xed -> 0x9f; 0xf4 -> 0x8f; else -> 0xbf }
        if (next !in least..most) return -i
    }
    return count
}

/** A piece of bytes: valid UTF-8, and the invalid bytes behind it. */
internal class Piece(val text: String, val invalid: ByteArray)

/** Cut bytes into pieces of valid text and what is invalid behind each. */
internal fun splitInvalid(data: ByteArray): List<Piece> {
    val pieces = ArrayList<Piece>()
    var start = 0
    var at = 0
    while (at < data.size) {
        val length = characterAt(data, at)
        if (length > 0) {
            at += length
            continue
        }
        val end = if (length == 0) data.size else at - length
        pieces += Piece(data.decodeToString(start, at), data.copyOfRange(at, end))
        at = end
        start = end
    }
    if (start < data.size) pieces += Piece(data.decodeToString(start, data.size), ByteArray(0))
    return pieces
}

/**
 * Turns the bytes of a stream of tokens into text as soon as characters are complete.
 *
 * An incomplete UTF-8 sequence is held back until its last byte comes; invalid bytes become U+FFFD,
 * as in Python: one for the longest beginning of a character. The pieces joined are the text of all
 * bytes joined.
 */
class TextStream {
    private var held = ByteArray(0)

    /** Add the bytes of one token; returns the text that is complete now, maybe empty. */
    fun push(bytes: ByteArray): String = decode(held + bytes, final = false)

    /** The text of an unfinished sequence at the end, maybe empty; the stream starts anew. */
    fun finish(): String = decode(held, final = true)

    private fun decode(data: ByteArray, final: Boolean): String {
        val text = StringBuilder()
        var start = 0 // of valid bytes that are not yet in ``text``
        var at = 0
        held = ByteArray(0)
        while (at < data.size) {
            val length = characterAt(data, at)
            if (length > 0) {
                at += length
                continue
            }
            text.append(data.decodeToString(start, at))
            if (length == 0 && !final) {
                held = data.copyOfRange(at, data.size)
                return text.toString()
            }
            text.append(REPLACEMENT)
            at = if (length == 0) data.size else at - length
            start = at
        }
        return text.append(data.decodeToString(start, data.size)).toString()
    }
}

/** The text of bytes, as [TextStream] gives it. */
internal fun textOf(bytes: ByteArray): String =
    TextStream().let { it.push(bytes) + it.finish() }

internal fun joined(parts: Iterable<ByteArray>): ByteArray =
    ByteArrayOutputStream().also { out -> parts.forEach { out.write(it, 0, it.size) } }.toByteArray()
