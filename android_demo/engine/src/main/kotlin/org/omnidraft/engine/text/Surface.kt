package org.omnidraft.engine.text

private val byteToken = Regex("<0x([0-9A-Fa-f]{2})>")

/** GPT-2's table: a printable character for each byte, read backwards. */
private val byteOfCharacter: Map<Char, Byte> = buildMap {
    val printable = (0x21..0x7e) + (0xa1..0xac) + (0xae..0xff)
    for (byte in printable) put(byte.toChar(), byte.toByte())
    (0..0xff).filter { it !in printable.toSet() }.forEachIndexed { index, byte ->
        put((256 + index).toChar(), byte.toByte())
    }
}

/** The byte a SentencePiece byte token such as `<0x0A>` stands for, or null. */
internal fun byteTokenValue(token: String): Int? =
    if (token.length != 6) null else byteToken.matchEntire(token)?.groupValues?.get(1)?.toInt(16)

/** The bytes of a SentencePiece token: `▁` is a space, `<0xNN>` is that byte. */
internal fun sentencePieceSurface(token: String): ByteArray =
    byteTokenValue(token)?.let { byteArrayOf(it.toByte()) }
        ?: token.replace('▁', ' ').encodeToByteArray()

/**
 * The bytes of a byte-level BPE token (GPT-2's alphabet).
 *
 * A token with characters outside the alphabet was added as plain text and is taken as such.
 */
internal fun byteLevelSurface(token: String): ByteArray {
    val bytes = ByteArray(token.length)
    for (i in token.indices) bytes[i] = byteOfCharacter[token[i]] ?: return token.encodeToByteArray()
    return bytes
}
