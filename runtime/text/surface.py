"""The bytes a token stands for, and the exact text of a stream of tokens."""

from __future__ import annotations

import codecs
import re

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table: a printable character for each byte, read backwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


BYTE_OF_CHARACTER = _byte_level_alphabet()
CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


def byte_token_value(token: str) -> int | None:
    """The byte a SentencePiece byte token such as ``<0x0A>`` stands for, or None."""
    match = _BYTE_TOKEN.match(token)
    return int(match[1], 16) if match else None


def sentencepiece_surface(token: str) -> bytes:
    """The bytes of a SentencePiece token: ``▁`` is a space, ``<0xNN>`` is that byte."""
    byte = byte_token_value(token)
    return bytes([byte]) if byte is not None else token.replace("▁", " ").encode()


def byte_level_surface(token: str) -> bytes:
    """The bytes of a byte-level BPE token (GPT-2's alphabet).

    A token with characters outside the alphabet was added as plain text and is taken as such.
    """
    try:
        return bytes(BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()


class TextStream:
    """Turns the bytes of a stream of tokens into text as soon as characters are complete.

    An incomplete UTF-8 sequence is held back until its last byte comes; invalid bytes become
    U+FFFD. The pieces joined are ``bytes.decode("utf-8", errors="replace")`` of all bytes joined.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, data: bytes) -> str:
        """Add the bytes of one token; returns the text that is complete now, maybe empty."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """The text of an unfinished sequence at the end, maybe empty; the stream starts anew."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
