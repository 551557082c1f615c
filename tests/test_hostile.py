"""Files come from strangers: each is opened, or refused in words, and takes little to refuse.

What fuzzing found, and what it began with, lies in ``fuzz/corpus``: see ``fuzz/README.md``.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import resource
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.checkpoint.safetensors import describe
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.learning.store import AdapterStore
from omnidraft.runtime.models.listing import list_models
from omnidraft.runtime.storage.bundle import BUNDLE_FILE, Bundle
from omnidraft.runtime.storage.manifest import MANIFEST_FILE, Manifest
from omnidraft.runtime.storage.reading import reading
from omnidraft.runtime.text.tokenizer import Tokenizer

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from fuzz.safetensors import CONFIG  # noqa: E402

CORPUS = REPOSITORY / "fuzz" / "corpus"
INPUTS = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
MOST_BYTES = 2 << 30


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Two more gigabytes than the process has now."""
    if not sys.platform.startswith("linux"):
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", INPUTS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_what_fuzzing_found_is_opened_or_refused(path: Path, little_memory: None) -> None:
    check: Callable[[bytes], None] = importlib.import_module(f"fuzz.{path.parent.name}").check
    check(path.read_bytes())


def test_every_harness_has_a_corpus() -> None:
    harnesses = {
        path.stem
        for path in CORPUS.parent.glob("*.py")
        if "\ndef check(data: bytes) -> None:" in path.read_text("utf-8")
    }
    assert harnesses == {path.parent.name for path in INPUTS}
    assert len(harnesses) >= 10
    told = (CORPUS.parent / "README.md").read_text("utf-8")
    assert all(f"| `{name}` |" in told for name in harnesses)


# --- the boundary ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        *(RecursionError("too deep"), OverflowError("too large"), MemoryError(), EOFError()),
        *(struct.error("too short"), zlib.error("no stream"), zipfile.BadZipFile("no archive")),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    ],
)
def test_what_content_makes_a_reader_raise_is_told_of_the_file(error: Exception) -> None:
    with (
        pytest.raises(OmniDraftError, match=r"some/file.*again") as told,
        reading(Path("some/file")),
    ):
        raise error
    assert told.value.__cause__ is error


def _openings(folder: Path) -> list[Callable[[], object]]:
    (folder / "tokenizer.json").write_bytes((folder / "config.json").read_bytes())
    return [
        lambda: Bundle.load(folder),
        lambda: Manifest.load(folder),
        lambda: open_checkpoint(folder),
        lambda: Tokenizer.load(folder),
        lambda: AdapterStore(folder).read("a"),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"schema_version":' * 100_000,
        b'{"a":' + b"[" * 900 + b"]" * 900 + b"}",
        b"\xff\xfe\x00",
        b"9" * 100_000,
        b"",
        b"null",
    ],
    ids=["deep lists", "deep objects", "900 lists", "no text", "a long number", "nothing", "null"],
)
def test_json_that_is_none_is_refused_by_all_who_read_it(content: bytes, tmp_path: Path) -> None:
    for name in (BUNDLE_FILE, MANIFEST_FILE, "config.json", "a.adapter"):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")
    for opened in _openings(tmp_path):
        with pytest.raises(OmniDraftError):
            opened()


@pytest.mark.parametrize("name", [BUNDLE_FILE, MANIFEST_FILE])
def test_the_command_ends_in_words(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"[" * 100_000)
    command = ["inspect", str(tmp_path)]
    if name == MANIFEST_FILE:
        command = ["generate", "--target", str(tmp_path), "--no-draft", "--prompt", "Hi"]
    environment = {**os.environ, "OMNIDRAFT_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-m", "omnidraft", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ") and str(tmp_path / name) in result.stderr


# --- what a file says of itself -----------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**12},
        {"num_hidden_layers": 10**30},
        {"hidden_size": 10**12},
        {"hidden_size": 1 << 24, "num_attention_heads": 1},
        {"head_dim": 10**12},
        {"vocab_size": 10**12},
        {"intermediate_size": 10**30},
        {"max_position_embeddings": 10**30},
        {"rope_theta": 1},
        {"rope_scaling": {"type": "yarn", "factor": 2}, "rope_theta": 1.0},
        {
            "rope_scaling": {"type": "longrope", "short_factor": [1, 1]},
            "original_max_position_embeddings": 1,
        },
        {
            "rope_scaling": {
                "type": "yarn",
                "factor": 2,
                "original_max_position_embeddings": 0.5,
            }
        },
    ],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused(
    changes: dict[str, Any], tmp_path: Path, little_memory: None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    (tmp_path / "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")
    with pytest.raises(DamagedFileError, match=r"config\.json: "):
        open_checkpoint(tmp_path)


def _tokenizer(**changes: Any) -> dict[str, bytes]:
    files = json.loads((CORPUS / "tokenizer" / "byte-level").read_bytes())
    files["tokenizer.json"].update(changes.pop("tokenizer", {}))
    for name, change in changes.items():
        files[f"{name}.json"] = {**files.get(f"{name}.json", {}), **change}
    return {name: json.dumps(value).encode() for name, value in files.items()}


def test_a_vocabulary_that_is_too_large_is_refused(little_memory: None) -> None:
    model = json.loads(_tokenizer()["tokenizer.json"])["model"]
    model["vocab"]["x"] = 2**32 - 1
    with pytest.raises(DamagedFileError, match="4,294,967,295"):
        Tokenizer(_tokenizer(tokenizer={"model": model}))


@pytest.mark.parametrize("size", [0x7FFFFFFF, 0xFFFFFFFF, 5])
@pytest.mark.parametrize("place", ["alone", "in a sequence", "escaped"])
def test_a_table_that_is_longer_than_it_is_gets_no_memory(
    size: int, place: str, little_memory: None
) -> None:
    table = base64.b64encode(size.to_bytes(4, "little") + bytes(4)).decode()
    normalizer: dict[str, Any] = {"type": "Precompiled", "precompiled_charsmap": table}
    if place == "in a sequence":
        inner = {"type": "Sequence", "normalizers": [normalizer]}
        normalizer = {"type": "Sequence", "normalizers": [inner]}
    files = _tokenizer(tokenizer={"normalizer": normalizer})
    if place == "escaped":
        content = files["tokenizer.json"].replace(
            b"precompiled_charsmap", rb"precompiled_\u0063harsmap"
        )
        assert content != files["tokenizer.json"]
        files["tokenizer.json"] = content
    with pytest.raises(DamagedFileError, match="charsmap that is cut off"):
        Tokenizer(files)


def test_a_tokenizer_on_which_the_library_panics_is_refused() -> None:
    pieces = [{"SpecialToken": {"id": "<s>", "type_id": 0}}]
    processor = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}, "single": pieces}
    with pytest.raises(DamagedFileError, match=r"tokenizer\.json"):
        Tokenizer(_tokenizer(tokenizer={"post_processor": processor}))


@pytest.mark.parametrize(
    "changes",
    [
        {"generation_config": {"eos_token_id": [[8], {}, None, "8", 1.5, True, 8]}},
        {"generation_config": {"eos_token_id": {"a": 8}, "bos_token_id": 10**30}},
        {"generation_config": {"eos_token_id": 1.5, "bos_token_id": -1}},
        {"tokenizer_config": {"eos_token": "\ud800", "bos_token": {"content": "a\udfff"}}},
        {"tokenizer_config": {"eos_token": ["<|im_end|>"], "bos_token": 3}},
        {"tokenizer_config": {"chat_template": [None, "a", [], {}, {"name": ["default"]}]}},
        {"tokenizer_config": {"chat_template": {"default": "a"}}},
    ],
    ids=str,
)
def test_odd_companions_of_a_tokenizer_are_as_if_they_were_silent(changes: dict[str, Any]) -> None:
    tokenizer = Tokenizer(_tokenizer(**changes))
    assert tokenizer.eos_ids == {8}
    assert tokenizer.bos_id in (None, 0)
    assert tokenizer.decode(tokenizer.encode("the the")) == "the the"


def test_a_template_that_is_no_text_is_refused() -> None:
    with pytest.raises(DamagedFileError, match=r"chat_template\.jinja"):
        Tokenizer({**_tokenizer(), "chat_template.jinja": b"\xff"})


def _sentencepiece_gguf(path: Path, last: str, unknown: int) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "<0x0A>", last])
    writer.add_token_types([2, 3, 6, 1])
    writer.add_token_scores([0.0] * 4)
    writer.add_unk_token_id(unknown)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.mark.timeout(60)
def test_a_piece_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    _sentencepiece_gguf(path, "a" * 1_000_000, 0)
    with pytest.raises(DamagedFileError, match="1,000,000 characters"):
        Tokenizer.load(path)


def test_an_unknown_token_outside_of_the_vocabulary_is_none(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    _sentencepiece_gguf(path, "▁t", 9)
    assert Tokenizer.load(path).decode([3]) == " t"


def test_what_is_too_deep_to_show_is_named() -> None:
    deep: Any = 1
    for _ in range(960):
        deep = [deep]
    for value in (deep, {"a": deep}):
        with pytest.raises(DamagedFileError, match=r"config\.json: hidden_size must be "):
            describe({**CONFIG, "hidden_size": value}, "a")


# --- names of files that a manifest tells --------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/etc/passwd", "C:/x", "C:x", "..\\x", "\\x", "", "a\0b", "a" * 5000],
    ids=lambda name: repr(name[:12]),
)
def test_manifests_name_no_file_outside_of_their_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "x").write_bytes(b"graph")
    entry = {"size": 5, "sha256": hashlib.sha256(b"graph").hexdigest()}
    bundle = json.loads((CORPUS / "bundle" / "whole").read_bytes())
    bundle["files"] = {name: entry}
    text = json.dumps(bundle, sort_keys=True)
    bundle["digest"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / BUNDLE_FILE).write_text(json.dumps(bundle))
    manifest = json.loads((CORPUS / "manifest" / "whole").read_bytes())
    manifest["files"] = {name: entry}
    manifest["extra"] = {"name": name}
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    for opened in (lambda: Bundle.load(folder), lambda: Manifest.load(folder).verify(folder)):
        with pytest.raises(OmniDraftError, match=r"folder|too long"):
            opened()


@pytest.mark.parametrize("name", [BUNDLE_FILE, MANIFEST_FILE])
def test_manifests_that_are_too_large_are_refused(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(DamagedFileError, match=f"{name} has 1,073,741,824 bytes"):
        (Bundle if name == BUNDLE_FILE else Manifest).load(tmp_path)


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "../x", "", ["a"], {"a": 1}], ids=str)
def test_a_model_in_the_cache_that_has_an_odd_name_is_listed(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path))
    folder = tmp_path / "models" / "odd"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"graph")
    manifest = json.loads((CORPUS / "manifest" / "whole").read_bytes())
    (folder / MANIFEST_FILE).write_text(json.dumps({**manifest, "extra": {"name": name}}))
    assert [model.state for model in list_models() if model.path == folder] == ["left over"]
