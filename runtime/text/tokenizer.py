"""A model's tokenizer: text ↔ ids ↔ the exact bytes each token stands for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import tokenizers

from omnidraft.runtime.errors import (
    DamagedFileError,
    ModelNotFoundError,
    OmniDraftError,
    OptionError,
)
from omnidraft.runtime.storage.reading import (
    LARGEST_JSON,
    LARGEST_TOKENIZER,
    read_bounded,
    reading,
)
from omnidraft.runtime.text.backend import ids_of, open_backend
from omnidraft.runtime.text.chat import Message, check_roles, render_chat, words_of_template
from omnidraft.runtime.text.gguf_tokenizer import tokenizer_files_from_gguf
from omnidraft.runtime.text.markers import (
    END_TOKENS,
    Marker,
    looks_like_marker,
    segments,
    unused_character,
)
from omnidraft.runtime.text.sentencepiece import (
    MODEL_FILE,
    tokenizer_files_from_sentencepiece,
)
from omnidraft.runtime.text.surface import (
    byte_level_surface,
    byte_token_value,
    sentencepiece_surface,
)
from omnidraft.runtime.text.tool_probes import Tool, call_text, tools_text

_SPECIAL_NAMES = tuple(
    f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_MOST_TOKENS = 1 << 22
"""Sixteen times as many as the largest vocabularies have."""
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


def tokenizer_files(source: Path) -> dict[str, bytes]:
    """Everything ``Tokenizer`` needs from a model: a folder, a GGUF file or an ONNX graph.

    Returns:
        File name → content; written into a folder, ``Tokenizer.load`` reads them back.

    Raises:
        ModelNotFoundError: the folder holds no ``tokenizer.json`` and no ``tokenizer.model``.
        DamagedFileError, OmniDraftError: see ``tokenizer_files_from_gguf``,
            ``tokenizer_files_from_sentencepiece``.
    """
    with reading(source):
        return _tokenizer_files(source)


def _tokenizer_files(source: Path) -> dict[str, bytes]:
    if source.is_file() and source.suffix.lower() != ".onnx":
        return tokenizer_files_from_gguf(source)
    source = _tokenizer_folder(source)
    sentencepiece = source / MODEL_FILE
    if not _holds_tokenizer(source):
        raise ModelNotFoundError(
            f"{source} holds no tokenizer.json and no {MODEL_FILE}. Load the model's "
            "tokenizer with transformers' AutoTokenizer and save it there with save_pretrained()."
        )
    files = {
        name: read_bounded(source / name, LARGEST_TOKENIZER)
        for name in _FILES
        if (source / name).is_file()
    }
    if "tokenizer.json" not in files:
        more = source / "added_tokens.json"
        added = {more.name: read_bounded(more, LARGEST_JSON)} if more.is_file() else {}
        config = _json(files, "special_tokens_map.json")
        config |= {k: v for k, v in _json(files, "tokenizer_config.json").items() if v is not None}
        files |= tokenizer_files_from_sentencepiece(sentencepiece, config, _json(added, more.name))
    # Only here do some models say how a text ends.
    if "generation_config.json" not in files and (source / "config.json").is_file():
        content = read_bounded(source / "config.json", LARGEST_JSON)
        config = _json({"config.json": content}, "config.json")
        ids = {key: config.get(key) for key in ("bos_token_id", "eos_token_id")}
        files["generation_config.json"] = json.dumps(ids).encode()
    return files


def _tokenizer_folder(source: Path) -> Path:
    """Where the tokenizer of a folder or an ONNX graph lies: there, or above ``onnx/``."""
    folder = source.parent if source.is_file() else source
    above = folder.absolute().parent
    is_part = not (folder / "config.json").is_file() and any(folder.glob("*.onnx"))
    return above if is_part and not _holds_tokenizer(folder) and _holds_tokenizer(above) else folder


def _holds_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", MODEL_FILE))


class Tokenizer:
    """A tokenizer with its special tokens, its chat template and its tokens' surface bytes.

    Args:
        files: what ``tokenizer_files`` returns; only ``tokenizer.json`` is required.

    Raises:
        DamagedFileError: a file is not what its name says.
    """

    tokens: list[str]
    """Id → the token as its vocabulary spells it, "" for an id without a token."""
    surfaces: list[bytes | None]
    """Id → surface bytes; None for special tokens, markers such as ``<think>`` and unused ids."""
    bos_id: int | None
    """The token that begins a text, if there is one."""
    add_bos: bool
    """Whether a text is to begin with it."""
    eos_ids: frozenset[int]
    """Every token that ends a text or the assistant's turn."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        with reading("The model's tokenizer"):
            self._read(files)

    def _read(self, files: Mapping[str, bytes]) -> None:
        self._backend = open_backend(files["tokenizer.json"])
        self._json = files["tokenizer.json"]
        self._literal: dict[str, tokenizers.Tokenizer] = {}
        config = _json(files, "tokenizer_config.json")
        generation = _json(files, "generation_config.json")
        # Some models name them only in the one, some only in the other.
        mapped = _json(files, "special_tokens_map.json")
        self._special_names = {
            key: name
            for key in _SPECIAL_NAMES
            if (name := _token_name(config.get(key)) or _token_name(mapped.get(key))) is not None
        }
        self._template = _chat_template(files, config)
        self._read_vocabulary()
        self._read_special_ids(config, generation)

    @classmethod
    def load(cls, source: Path) -> Tokenizer:
        """The tokenizer of a model folder or a GGUF file: see ``tokenizer_files``."""
        with reading(source):
            return cls(tokenizer_files(source))

    def _read_vocabulary(self) -> None:
        backend = self._backend
        vocabulary = backend.get_vocab(with_added_tokens=True)
        last = max(vocabulary.values(), default=-1)
        if last >= _MOST_TOKENS:
            raise DamagedFileError(
                f"tokenizer.json has a token {last:,}, which no vocabulary needs. "
                "Fetch the model again."
            )
        self.tokens = [""] * (last + 1)
        for token, index in vocabulary.items():
            self.tokens[index] = token
        byte_level = b'"ByteLevel"' in b"".join(
            part.__getstate__() for part in (backend.decoder, backend.pre_tokenizer) if part
        )
        surface = byte_level_surface if byte_level else sentencepiece_surface
        self.surfaces = [surface(token) if token else None for token in self.tokens]
        # What a token shows to a reader: a marker is shown though it has no surface.
        self._shown = [data or b"" for data in self.surfaces]
        for index, added in backend.get_added_tokens_decoder().items():
            content = added.content
            data = content.encode() if byte_level else sentencepiece_surface(content)
            learned = not byte_level and backend.model.token_to_id(content) is not None
            is_marker = looks_like_marker(content) and not learned
            self.surfaces[index] = None if added.special or is_marker else data
            self._shown[index] = b"" if added.special else data
        self._byte_level = byte_level

    def _read_special_ids(self, config: Mapping[str, Any], generation: Mapping[str, Any]) -> None:
        backend = self._backend
        # The post-processor may know of a first token that the configuration does not name.
        implied = ids_of(backend, "", add_special_tokens=True)
        named = self._special_names.get("bos_token")
        bos = backend.token_to_id(named) if named else generation.get("bos_token_id")
        if bos is None and implied:
            bos = implied[0]
        self.bos_id = bos if type(bos) is int and 0 <= bos < len(self.tokens) else None
        self.add_bos = self.bos_id is not None and bool(
            config.get("add_bos_token", self.bos_id in implied)
        )
        ends = generation.get("eos_token_id")
        eos = {end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int}
        if name := self._special_names.get("eos_token"):
            eos |= {end for end in [backend.token_to_id(name)] if end is not None}
        for index, added in backend.get_added_tokens_decoder().items():
            if added.content in END_TOKENS:
                eos.add(index)
                self._shown[index] = b""
        self.eos_ids = frozenset(eos)

    @property
    def vocab_size(self) -> int:
        """Number of ids; a model may have more columns, which no text ever uses."""
        return len(self.tokens)

    def surface(self, token: int) -> bytes | None:
        """The bytes a token stands for, None if it is special or unknown."""
        return self.surfaces[token] if 0 <= token < len(self.surfaces) else None

    def is_byte_token(self, token: int) -> bool:
        """Whether a token is a SentencePiece byte token such as ``<0x0A>``."""
        return not self._byte_level and byte_token_value(self.tokens[token]) is not None

    def encode(
        self, text: str, *, parse_special: bool = False, add_bos: bool | None = None
    ) -> list[int]:
        """Token ids of a text.

        Args:
            text: any text without lone surrogates.
            parse_special: read names of special tokens as those tokens, not as text.
            add_bos: begin with ``bos_id``; default: as the model wants it (``self.add_bos``).

        Raises:
            OmniDraftError: the text holds lone surrogates, that is, bytes that were not UTF-8.
        """
        _check_text(text)
        self._backend.encode_special_tokens = not parse_special
        ids = ids_of(self._backend, text)
        wanted = self.bos_id if (self.add_bos if add_bos is None else add_bos) else None
        # A text with markers may begin with it of itself.
        return ids if wanted is None or ids[:1] == [wanted] else [wanted, *ids]

    def shown_bytes(self, token: int) -> bytes:
        """The bytes a token adds to the text a reader sees; empty for a special token."""
        return self._shown[token] if 0 <= token < len(self._shown) else b""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a continuation, special tokens left out; invalid UTF-8 becomes U+FFFD.

        No space is dropped at the beginning. ``TextStream`` gives the same in pieces.
        """
        return b"".join(map(self.shown_bytes, ids)).decode("utf-8", errors="replace")

    @property
    def has_chat_template(self) -> bool:
        """Whether the model was trained to chat; if not, prompts are used raw."""
        return self._template is not None

    def apply_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text of a conversation, ready for the assistant's answer.

        Args:
            tools: what the model may call.

        Raises:
            OmniDraftError: the model has no chat template, or it refuses the messages.
        """
        if self._template is None:
            raise OmniDraftError("This model has no chat template. Use the raw prompt (raw=True).")
        return render_chat(
            self._template,
            messages,
            add_generation_prompt=add_generation_prompt,
            special_tokens=self._special_names,
            tools=tools,
        )

    @cached_property
    def tools_text(self) -> str | None:
        """A conversation in which the template shows a tool; None: it shows none."""
        return tools_text(self.apply_chat)

    @cached_property
    def call_text(self) -> str | None:
        """A conversation in which the template shows a call; None: it shows none."""
        return call_text(self.apply_chat)

    def check_roles(self, messages: Sequence[Message]) -> None:
        """See ``chat.check_roles``; without a template ``apply_chat`` refuses all."""
        if self._template is not None:
            check_roles(self._template, messages)

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of ``apply_chat``; the template itself says whether a BOS token leads.

        Only the markers of the template are special tokens. Where a message spells the name of one
        it is text, of which a user may type what he likes.

        Raises:
            OptionError: the template would leave out the tools, or calls in the messages.
            OmniDraftError: see ``apply_chat``; a text is not valid Unicode.
        """
        render = partial(self.apply_chat, add_generation_prompt=add_generation_prompt)
        for text in (value for message in messages for value in message.values()):
            if isinstance(text, str):  # before the template moves its characters
                _check_text(text)
        if self._template is not None:
            if tools and self.tools_text is None:
                raise OptionError("tools are nothing that the model's chat template shows")
            if any(each.get("tool_calls") for each in messages) and self.call_text is None:
                raise OptionError("messages hold tool_calls, which the model's template leaves out")
        found = segments(render, messages, tools, self._markers)
        if found is None:
            return self.encode(render(messages, tools), parse_special=True, add_bos=False)
        ids: list[int] = []
        for part in found:
            if part.marker:
                ids.append(part.marker.index)
            if part.text:
                ids += self._encode_behind(part.marker, part.text, part.typed)
        return ids

    def _encode_behind(self, marker: Marker | None, text: str, literally: bool) -> list[int]:
        """Tokens of a text behind a marker, on which white space and prefixes depend.

        Args:
            literally: names of markers in it are text.
        """
        if not literally:
            ids = self.encode(
                (marker.name if marker else "") + text, parse_special=True, add_bos=False
            )
            return ids[ids.index(marker.index) + 1 :] if marker else ids
        _check_text(text)
        # Any added token leads as well as the marker does, whose own name is text here.
        lead = unused_character(text)
        if lead not in self._literal:
            self._literal[lead] = self._without_markers(lead)
        backend = self._literal[lead]
        ids = ids_of(backend, (lead if marker else "") + text)
        return ids[1:] if marker else ids

    def _without_markers(self, lead: str) -> tokenizers.Tokenizer:
        """This tokenizer, to which no marker's name is more than text, and ``lead`` is a token."""
        state = json.loads(self._json)
        for added in state["added_tokens"]:
            added["special"] = added["special"] or added["content"] in self._markers
        backend = open_backend(json.dumps(state))
        backend.encode_special_tokens = True
        backend.add_tokens([tokenizers.AddedToken(lead, normalized=False)])
        return backend

    @cached_property
    def _markers(self) -> dict[str, Marker]:
        """The tokens that the names in a rendered conversation stand for, by name.

        They are those flagged special and, whatever their flag, those that the template uses and
        those that end a text.
        """
        words = words_of_template(self._template or "", self._special_names)
        markers = {}
        for index, added in self._backend.get_added_tokens_decoder().items():
            name = added.content
            used = looks_like_marker(name) and (name in END_TOKENS or name in words)
            if len(name) > 1 and (added.special or used):
                structural = (
                    added.special or name in END_TOKENS or name.startswith(("<|", "<\uff5c"))
                )
                markers[name] = Marker(index, name, added.lstrip, added.rstrip, not structural)
        return markers

    def segment(self, data: bytes) -> list[int] | None:
        """Tokens that spell exactly these bytes, as the tokenizer would split them in isolation.

        No space is put in front and no character is normalised. What is not UTF-8, or does not
        come back exactly, is spelled by the longest tokens that fit.

        Returns:
            Ids whose surfaces, joined, are ``data``; None if the vocabulary cannot spell it.
        """
        ids: list[int] = []
        for text, raw in _split_invalid(data):
            piece = self._segment_text(text)
            if piece is None:
                piece = self._longest_match(text.encode())
            tail = self._longest_match(raw)
            if piece is None or tail is None:
                return None
            ids += piece + tail
        return ids

    def _segment_text(self, text: str) -> list[int] | None:
        ids: list[int] = []
        for index in ids_of(self._isolated, text):
            if self.surfaces[index] is not None:
                ids.append(index)
                continue
            # A marker's name in plain text: spell it with ordinary tokens.
            spelled = self._longest_match(self._shown[index] or self.tokens[index].encode())
            if spelled is None:
                return None
            ids += spelled
        joined = b"".join(self.surfaces[index] or b"" for index in ids)
        return ids if joined == text.encode() else None

    def _longest_match(self, data: bytes) -> list[int] | None:
        by_surface, longest = self._by_surface
        ids = []
        start = 0
        while start < len(data):
            for end in range(min(len(data), start + longest), start, -1):
                if (index := by_surface.get(data[start:end])) is not None:
                    ids.append(index)
                    start = end
                    break
            else:
                return None
        return ids

    @cached_property
    def _by_surface(self) -> tuple[dict[bytes, int], int]:
        """Surface → id (an ordinary token before a byte token, then the lowest id), and length."""
        table: dict[bytes, int] = {}
        # Later entries win, so the preferred ones come last.
        order = sorted(range(self.vocab_size), key=lambda i: (not self.is_byte_token(i), -i))
        for index in order:
            if data := self.surfaces[index]:
                table[data] = index
        return table, max(map(len, table), default=0)

    @cached_property
    def _isolated(self) -> tokenizers.Tokenizer:
        """This tokenizer without a space put in front and without lossy normalisation."""
        with reading("The model's tokenizer"):
            state = json.loads(self._json)
            state["post_processor"] = state["truncation"] = state["padding"] = None
            # As the library words them, which takes them in older forms, too.
            normalizer, pre_tokenizer = (
                json.loads(part.__getstate__()) if part else None
                for part in (self._backend.normalizer, self._backend.pre_tokenizer)
            )
            state["normalizer"] = _exact_normalizer(normalizer)
            state["pre_tokenizer"] = _without_prefix_space(pre_tokenizer)
            isolated = open_backend(json.dumps(state))
        isolated.encode_special_tokens = True
        return isolated


def _exact_normalizer(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """Keep only the replacement of spaces by ▁: everything else changes or adds text."""
    parts = [] if state is None else state.get("normalizers", [state])
    kept = [p for p in parts if p["type"] == "Replace" and p.get("content") == "▁"]
    return {"type": "Sequence", "normalizers": kept} if kept else None


def _without_prefix_space(state: dict[str, Any] | None) -> dict[str, Any] | None:
    if state is None:
        return None
    state = dict(state)
    if state["type"] == "Sequence":
        state["pretokenizers"] = [_without_prefix_space(s) for s in state["pretokenizers"]]
    elif state["type"] == "Metaspace":
        state["prepend_scheme"] = "never"
        state.pop("add_prefix_space", None)
    elif state["type"] == "ByteLevel":
        state["add_prefix_space"] = False
    return state


def _split_invalid(data: bytes) -> list[tuple[str, bytes]]:
    """Cut bytes into (valid UTF-8 text, invalid bytes after it) pieces."""
    pieces = []
    while data:
        try:
            pieces.append((data.decode(), b""))
            break
        except UnicodeDecodeError as error:
            pieces.append((data[: error.start].decode(), data[error.start : error.end]))
            data = data[error.end :]
    return pieces


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OmniDraftError(
            f"A text holds what is no character at position {error.start} "
            f"(U+{ord(text[error.start]):04X}, a half of one or a byte that was not UTF-8). "
            "Decode it as UTF-8 first, with errors='replace' if need be."
        ) from error


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        value = json.loads(files[name])
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{name} is damaged: {error}. Fetch the model again.") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{name} does not hold an object. Fetch the model again.")
    return value


def _token_name(value: Any) -> str | None:
    """A special token is configured as a string or as an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    # No token has half of a surrogate pair in its name, which JSON can say.
    whole = isinstance(value, str) and value == value.encode(errors="ignore").decode()
    return value if whole else None


def _chat_template(files: Mapping[str, bytes], config: Mapping[str, Any]) -> str | None:
    if "chat_template.jinja" in files:
        try:
            return files["chat_template.jinja"].decode()
        except UnicodeDecodeError as error:
            raise DamagedFileError(
                f"chat_template.jinja is not UTF-8 ({error}). Fetch the model again."
            ) from error
    template = _json(files, "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, list):
        named = [each for each in template if isinstance(each, dict)]
        template = next((t.get("template") for t in named if t.get("name") == "default"), None)
    return template if isinstance(template, str) else None
