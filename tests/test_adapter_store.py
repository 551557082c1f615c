"""Adapters on disk: what comes back, whose it is, damage, bounds, kills, and the command."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from killed_saves import number_of, numbered
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from omnidraft import OmniDraftError, _native
from omnidraft.cli.adapters import adapters_app
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError
from omnidraft.runtime.learning.adapter import Adapter, Metadata, ModelKey, model_key
from omnidraft.runtime.learning.adapter_file import to_bytes
from omnidraft.runtime.learning.store import AdapterStore, adapters_folder
from omnidraft.runtime.storage.lora import read_adapter

DRAFTER = ModelKey(name="default", sha256="d" * 64)
TARGET = ModelKey(name="smollm2-135m", sha256="a" * 64)
OTHER = ModelKey(name="gemma3-270m", sha256="b" * 64)


def small(seed: int = 0, *, rank: int = 3, **facts: Any) -> Adapter:
    """An adapter with something in every part."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return Adapter(
        Metadata(drafter=DRAFTER, target=TARGET, **facts),
        {"lora.0.qkv.A": normal(5, rank), "lora.0.qkv.B": normal(rank, 7)},
        rng.bytes(40),
        {"weight": normal(5), "bias": normal()},
        {"m": normal(5, rank), "step": np.array(seed)},
    )


def assert_same(found: Adapter, saved: Adapter) -> None:
    assert found.ngrams == saved.ngrams
    for part in ("lora", "head", "optimizer"):
        one, other = getattr(found, part), getattr(saved, part)
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name], strict=True)
    same = {"updated": found.metadata.updated, "rank": saved.rank}
    assert found.metadata == saved.metadata.model_copy(update=same)


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "adapters")


arrays = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    max_size=3,
)


@settings(max_examples=40)
@given(
    head=arrays,
    optimizer=arrays,
    ngrams=st.binary(max_size=50),
    rank=st.integers(0, 4),
    figures=st.dictionaries(
        st.text(max_size=5), st.lists(st.floats(allow_nan=False, allow_infinity=False)), max_size=3
    ),
)
def test_what_was_saved_comes_back(
    head: dict, optimizer: dict, ngrams: bytes, rank: int, figures: dict
) -> None:
    lora = small(rank=rank).lora if rank else {}
    adapter = Adapter(
        Metadata(drafter=DRAFTER, target=TARGET, prompts=3, updates=2, figures=figures),
        lora,
        ngrams,
        head,
        optimizer,
    )
    with tempfile.TemporaryDirectory() as folder:
        store = AdapterStore(Path(folder))
        store.save("math", adapter)
        assert_same(store.load("math", DRAFTER, TARGET), adapter)
        without = store.load("math", DRAFTER, TARGET, optimizer=False)
        assert not without.optimizer and without.lora.keys() == lora.keys()
        store.export("math", Path(folder) / "copy")
        store.import_(Path(folder) / "copy", "copy")
        assert_same(store.read("copy"), adapter)


def test_matrices_in_any_memory_layout_come_back(store: AdapterStore) -> None:
    a = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))
    b = np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2]
    adapter = Adapter(Metadata(drafter=DRAFTER, target=TARGET), {"lora.1.o.A": a, "lora.1.o.B": b})
    store.save("math", adapter)
    assert_same(store.load("math", DRAFTER, TARGET), adapter)


def test_another_models_adapter_is_refused_by_name(store: AdapterStore) -> None:
    store.save("math", small(1))
    with pytest.raises(OmniDraftError, match=r"target smollm2-135m.*not to gemma3-270m"):
        store.load("math", DRAFTER, OTHER)
    with pytest.raises(OmniDraftError, match=r"drafter default.*not to gemma3-270m"):
        store.load("math", OTHER, TARGET)
    theirs = Adapter(Metadata(drafter=DRAFTER, target=OTHER))
    with pytest.raises(OmniDraftError, match="belongs to the target smollm2-135m"):
        store.save("math", theirs)
    assert store.load("math", DRAFTER, TARGET).optimizer["step"] == 1
    # The same weights under another name are the same model.
    store.load("math", DRAFTER.model_copy(update={"name": "/my/drafter"}), TARGET)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../math",
        "a/b",
        "a\\b",
        ".hidden",
        "Math",
        "ma th",
        "a\n",
        "ü",
        "x" * 65,
    ],
)
def test_names_that_could_leave_the_folder_are_refused(
    store: AdapterStore, tmp_path: Path, name: str
) -> None:
    store.save("math", small())
    store.export("math", tmp_path / "file")
    for action in (
        lambda: store.save(name, small()),
        lambda: store.load(name, DRAFTER, TARGET),
        lambda: store.read(name),
        lambda: store.delete(name),
        lambda: store.export(name, tmp_path / "out"),
        lambda: store.import_(tmp_path / "file", name),
    ):
        with pytest.raises(OmniDraftError, match="cannot name an adapter"):
            action()
    assert [entry.name for entry in store.list()] == ["math"]


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"lora.0.o.A": np.zeros((2, 2), np.float32)}, "without its other half"),
        ({"o.A": np.zeros((2, 2), np.float32)}, "names no LoRA input"),
        (
            {"lora.0.o.A": np.zeros((2, 2)), "lora.0.o.B": np.zeros((2, 2), np.float32)},
            "float32 matrix",
        ),
        (
            {
                "lora.0.o.A": np.zeros((2, 2), np.float32),
                "lora.0.o.B": np.zeros((3, 2), np.float32),
            },
            "rank 3",
        ),
        (
            {
                "lora.0.o.A": np.full((2, 2), np.nan, np.float32),
                "lora.0.o.B": np.zeros((2, 2), np.float32),
            },
            "not finite",
        ),
    ],
)
def test_an_adapter_that_does_not_hold_together_is_not_saved(
    store: AdapterStore, lora: dict, message: str
) -> None:
    store.save("math", small(1))
    before = next(store.folder.glob("*.adapter")).read_bytes()
    with pytest.raises(OmniDraftError, match=message):
        store.save("math", Adapter(Metadata(drafter=DRAFTER, target=TARGET), lora))
    assert next(store.folder.glob("*.adapter")).read_bytes() == before


def test_no_damage_goes_unnoticed(store: AdapterStore) -> None:
    store.save("math", small(2))
    whole = (store.folder / "math.adapter").read_bytes()

    @settings(max_examples=150)
    @given(place=st.integers(0, len(whole) - 1), bit=st.integers(-1, 7))
    def damage(place: int, bit: int) -> None:
        content = bytearray(whole)
        if bit >= 0:
            content[place] ^= 1 << bit
        else:
            del content[place:]
        (store.folder / "math.adapter").write_bytes(content)
        copy = store.folder / "copy"
        copy.write_bytes(content)
        with pytest.raises(DamagedFileError):
            store.load("math", DRAFTER, TARGET)
        with pytest.raises(DamagedFileError):
            store.import_(copy, "copy")
        (entry,) = store.list()
        assert entry.name == "math"
        store.save("math", small(3))  # mends it
        assert store.read("math").optimizer["step"] == 3

    damage()


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"{}", os.urandom(5_000)])
def test_what_is_no_adapter_is_not_imported(
    store: AdapterStore, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError):
        store.import_(path, "math")
    with pytest.raises(ModelNotFoundError):
        store.import_(tmp_path / "absent", "math")
    with pytest.raises(ModelNotFoundError):
        store.import_(tmp_path, "math")
    save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(DamagedFileError, match="no adapter of omnidraft"):
        store.import_(path, "math")
    assert store.list() == []


def test_a_newer_versions_adapter_is_neither_read_nor_replaced(
    store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A newer version's file, as this version's code writes it, with a field that is still to come.
    newer = small(1)
    later = newer.metadata.model_copy(update={"schema_version": 2})
    path = tmp_path / "newer"
    path.write_bytes(to_bytes(newer, later))
    with pytest.raises(OmniDraftError, match=r"newer omnidraft .*Update") as caught:
        store.import_(path, "math")
    assert not isinstance(caught.value, DamagedFileError)
    store.folder.mkdir(exist_ok=True)
    path.rename(store.folder / "math.adapter")
    with pytest.raises(OmniDraftError, match="newer"):
        store.save("math", small(2))
    (entry,) = store.list()
    assert entry.metadata is None and "newer" in entry.problem
    store.delete("math")
    assert store.list() == []


def test_import_replaces_only_when_told(store: AdapterStore, tmp_path: Path) -> None:
    store.save("math", small(1))
    store.export("math", tmp_path / "file")
    store.save("code", small(2))
    with pytest.raises(OmniDraftError, match="--replace"):
        store.import_(tmp_path / "file", "code")
    assert store.read("code").optimizer["step"] == 2
    store.import_(tmp_path / "file", "code", replace=True)
    assert store.read("code").optimizer["step"] == 1
    assert store.read("code").metadata.updated == store.read("math").metadata.updated


def test_exports_are_open_formats(store: AdapterStore, tmp_path: Path) -> None:
    adapter = small(1)
    store.save("math", adapter)
    store.export("math", tmp_path / "math.safetensors")
    tensors = load_file(tmp_path / "math.safetensors")
    np.testing.assert_array_equal(tensors["lora.0.qkv.A"], adapter.lora["lora.0.qkv.A"])
    store.export("math", tmp_path / "math.onnx_adapter", "onnx-adapter")
    lora = read_adapter(tmp_path / "math.onnx_adapter")
    assert lora.keys() == adapter.lora.keys()
    for name, values in lora.items():
        np.testing.assert_array_equal(values, adapter.lora[name])
    store.save("empty", Adapter(Metadata(drafter=DRAFTER, target=TARGET)))
    with pytest.raises(OmniDraftError, match="no LoRA yet"):
        store.export("empty", tmp_path / "out", "onnx-adapter")
    with pytest.raises(OmniDraftError, match="folder"):
        store.export("math", tmp_path)
    with pytest.raises(OmniDraftError, match="No file can be written"):
        store.export("math", tmp_path / "absent" / "file")


def test_an_adapter_larger_than_the_store_is_refused(tmp_path: Path) -> None:
    AdapterStore(tmp_path).save("code", small(1))
    store = AdapterStore(tmp_path, max_bytes=100)
    with pytest.raises(OmniDraftError, match="whole store may take 100"):
        store.save("math", small(2))
    assert [entry.name for entry in store.list()] == ["code"]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README").write_bytes(b"x" * 10_000)
    (tmp_path / "My Notes.adapter").write_bytes(b"x" * 10_000)
    store = AdapterStore(tmp_path, max_bytes=4_000)
    for name in ("a", "b", "c", "d"):
        store.save(name, small())
    assert (tmp_path / "README").exists() and (tmp_path / "My Notes.adapter").exists()
    assert 1 <= len(store.list()) < 4


@pytest.mark.parametrize("call", ["fsync", "replace", "utime"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_costs_nothing_that_was_stored(
    store: AdapterStore, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    store.save("math", small(1))
    store.save("code", small(1))

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(*{"replace": (Path, "replace")}.get(call, (os, call)), fail)
        tight = AdapterStore(store.folder, max_bytes=4_000)
        message = "Nothing can be written" if code == errno.EIO else "disk of .* is full"
        with pytest.raises(OmniDraftError, match=message):
            tight.save("math", small(2))
    assert {entry.name for entry in store.list()} == {"math", "code"}
    assert store.read("math").optimizer["step"] == 1
    assert not list(store.folder.glob(".*.tmp"))
    store.save("math", small(3))


LIMITED = """
import resource, sys
from pathlib import Path
from killed_saves import number_of, numbered
from omnidraft.runtime.learning.store import AdapterStore
store = AdapterStore(Path(sys.argv[1]))
store.save("math", numbered(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.save("math", numbered(2))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_write_that_ends_half_way_leaves_the_old_adapter(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        timeout=60,
    )
    assert done.stdout.startswith(f"OmniDraftError The disk of {tmp_path} is full"), done.stderr
    assert [path.name for path in tmp_path.glob("*.adapter")] == ["math.adapter"]
    assert not list(tmp_path.glob(".*.tmp"))
    assert AdapterStore(tmp_path).read("math").metadata.prompts == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_moment_leaves_the_old_or_the_new_adapter() -> None:
    script = Path(__file__).with_name("killed_saves.py")
    done = subprocess.run(
        [sys.executable, script, "200"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    # Otherwise nothing was shown: some kills must have hit a save half-way, some saves have ended.
    assert counts["kills"] == 200 and counts["torn"] > 0 and counts["saves"] > 0


SAVER = """
import sys
from pathlib import Path
from killed_saves import numbered
from omnidraft.runtime.learning.store import AdapterStore
store = AdapterStore(Path(sys.argv[1]), max_bytes=1_200_000)
for number in range(12):
    store.save(f"{sys.argv[2]}{number % 2}", numbered(number))
    store.save("both", numbered(number))
"""


def test_processes_take_turns(tmp_path: Path) -> None:
    savers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path), name], cwd=Path(__file__).parent
        )
        for name in ("a", "b")
    ]
    while any(saver.poll() is None for saver in savers):
        store = AdapterStore(tmp_path, max_bytes=1_200_000)  # must not take a temporary file away
        assert not [entry.problem for entry in store.list() if entry.problem]
        time.sleep(0.01)
    assert [saver.returncode for saver in savers] == [0, 0]
    assert sum(entry.size for entry in store.list()) <= 1_200_000
    both = store.read("both")
    assert set(both.lora["lora.0.o.A"].ravel()) == {both.metadata.prompts} == {11}


def test_threads_take_turns(store: AdapterStore) -> None:
    def save(number: int) -> None:
        for _ in range(5):
            store.save("math", numbered(number))
            number_of(store.read("math"))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(save, range(3)))


class StoreMachine(RuleBasedStateMachine):
    """The store against a dictionary in order of use."""

    names = st.sampled_from(["a", "b", "c", "d", "e"])

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "adapters"
        self.model: dict[str, tuple[int, int]] = {}  # name → number, bytes; least recent first
        self.bound = 6_000
        self.open()

    def teardown(self) -> None:
        self.temporary.cleanup()

    @rule()
    def open(self) -> None:
        self.store = AdapterStore(self.folder, max_bytes=self.bound)

    @rule(name=names, number=st.integers(0, 99), rank=st.sampled_from([1, 8, 40]))
    def save(self, name: str, number: int, rank: int) -> None:
        evicted = self.store.save(name, small(number, rank=rank))
        self.model.pop(name, None)
        self.model[name] = number, (self.folder / f"{name}.adapter").stat().st_size
        expected = []
        while sum(size for _, size in self.model.values()) > self.bound:
            oldest = next(iter(self.model))
            del self.model[oldest]
            expected.append(oldest)
        assert evicted == expected and name in self.model

    @rule(name=names)
    def load(self, name: str) -> None:
        if name in self.model:
            number, size = self.model.pop(name)
            self.model[name] = number, size
            assert self.store.load(name, DRAFTER, TARGET).optimizer["step"] == number
        else:
            with pytest.raises(ModelNotFoundError):
                self.store.load(name, DRAFTER, TARGET)

    @rule(name=names)
    def load_for_another_target(self, name: str) -> None:
        with pytest.raises(OmniDraftError):
            self.store.load(name, DRAFTER, OTHER)

    @rule(name=names)
    def delete(self, name: str) -> None:
        if self.model.pop(name, None):
            self.store.delete(name)
        else:
            with pytest.raises(ModelNotFoundError):
                self.store.delete(name)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), to=names)
    def copy(self, data: st.DataObject, to: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.model)))
        file = Path(self.temporary.name) / "file"
        self.store.export(source, file)
        number = self.model[source][0]
        if to in self.model:
            with pytest.raises(OmniDraftError):
                self.store.import_(file, to)
            return
        self.store.import_(file, to)
        self.model[to] = number, file.stat().st_size
        while sum(size for _, size in self.model.values()) > self.bound:
            del self.model[next(iter(self.model))]

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        entries = self.store.list()
        assert [entry.name for entry in entries] == list(self.model)[::-1]
        assert sum(entry.size for entry in entries) <= self.bound
        assert not list(self.folder.glob(".*.tmp"))


StoreMachine.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=15,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStoreMachine = StoreMachine.TestCase


def test_ngrams_travel_in_an_adapter(store: AdapterStore) -> None:
    pair = _native.VocabularyPair(
        _native.Vocabulary([b"a", b"b"]), _native.Vocabulary([b"a", b"b", b"ab", b"bba"])
    )
    cache = _native.NgramCache(pair)
    assert cache.observe(2, [0, 1]) and cache.observe(3, [1, 1, 0])
    metadata = Metadata(drafter=DRAFTER, target=TARGET)
    store.save("math", Adapter(metadata, ngrams=cache.to_bytes()))
    loaded = store.load("math", DRAFTER, TARGET).ngram_cache(pair)
    assert sorted(loaded.ngrams()) == sorted(cache.ngrams())
    assert len(Adapter(metadata).ngram_cache(pair)) == 0


def test_a_key_is_of_the_weights_not_of_their_place(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(b"weights")
    first, second = (model_key(name, tmp_path / name) for name in ("one", "two"))
    assert first.sha256 == second.sha256
    file = model_key("file", tmp_path / "one" / "model.onnx")
    assert file == model_key("file", tmp_path / "two" / "model.onnx")
    (tmp_path / "two" / "model.onnx").write_bytes(b"Weights")
    assert model_key("two", tmp_path / "two").sha256 != first.sha256


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AdapterStore:
    """The store that the command uses."""
    monkeypatch.setenv("OMNIDRAFT_DATA", str(tmp_path / "data"))
    assert adapters_folder() == tmp_path / "data" / "adapters"
    return AdapterStore(adapters_folder())


def command(*arguments: str, stdin: str | None = None) -> Any:
    """Run ``omnidraft adapters``; one JSON object as a dictionary, or the text."""
    done = CliRunner().invoke(adapters_app, arguments, input=stdin)
    if isinstance(done.exception, OmniDraftError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def test_the_command_lists_and_shows(home: AdapterStore) -> None:
    assert command("list", "--json")["adapters"] == []
    home.save("math", small(1, prompts=1_234, figures={"acceptance": [0.25, 0.5]}))
    home.save("code", small(2))
    (home.folder / "bad.adapter").write_bytes(b"no")
    listed = {entry["name"]: entry for entry in command("list", "--json")["adapters"]}
    assert listed.keys() == {"math", "code", "bad"}
    assert listed["math"]["metadata"]["prompts"] == 1_234 and listed["math"]["problem"] is None
    assert listed["bad"]["metadata"] is None and "damaged" in listed["bad"]["problem"]
    # What looks like an adapter and is none.
    (home.folder / "loop.adapter").symlink_to("loop.adapter")
    longest = "a" * 64
    home.save(longest, small(2))
    text = command("list")
    assert longest in text  # whole, for whatever reads it from a pipe
    assert "1,234" in text and "smollm2-135m" in text and "unreadable" in text
    shown = command("show", "math", "--json")
    assert shown["metadata"]["figures"] == {"acceptance": [0.25, 0.5]}
    assert shown["metadata"]["target"] == {"name": "smollm2-135m", "sha256": "a" * 64}
    assert shown["lora"] == {"lora.0.qkv.A": [5, 3], "lora.0.qkv.B": [3, 7]}
    assert shown["ngrams_bytes"] == 40
    text = command("show", "math")
    assert "rank 3" in text and "1,234 prompts" in text
    figures = {"learning": {"promotions": 2, "rollbacks": 1, "recent": [0.5], "stopped": False}}
    adapter = small(1, prompts=9, updates=3, figures=figures)
    home.save("trying", dataclasses.replace(adapter, lora={}, optimizer=adapter.lora))
    text = command("show", "trying")
    assert "3 updates from 9 prompts; 2 came into use, 1 rolled back" in text
    assert "none in use yet" in text and "{" not in text and "rank" not in text
    row = next(line for line in command("list").splitlines() if line.startswith("trying"))
    assert "–" in row.split() and "–" not in next(
        line for line in command("list").splitlines() if line.startswith("math")
    )
    home.save("trying", small(1, figures={"learning": ["of", "another", "kind"], "head": None}))
    assert "0 updates from 0 prompts" in command("show", "trying")
    with pytest.raises(DamagedFileError):
        command("show", "bad")
    with pytest.raises(ModelNotFoundError, match="omnidraft adapters list"):
        command("show", "absent")


def test_a_store_that_cannot_be_written_says_so_beforehand(store: AdapterStore) -> None:
    store.check_writable("math")
    assert store.list() == []
    (store.folder / "math.adapter").mkdir()
    with pytest.raises(OmniDraftError, match="no file"):
        store.check_writable("math")
    with pytest.raises(OmniDraftError, match="cannot name"):
        store.check_writable("../math")
    (store.folder.parent / "file").touch()
    with pytest.raises(OmniDraftError, match="Nothing can be written"):
        AdapterStore(store.folder.parent / "file" / "adapters").check_writable("math")


def test_the_command_copies(home: AdapterStore, tmp_path: Path) -> None:
    home.save("math", small(1))
    file = tmp_path / "backup.adapter"
    assert command("export", "math", str(file), "--json")["size_bytes"] == file.stat().st_size
    with pytest.raises(OmniDraftError, match=r"'math' already.*--replace"):
        command("import", str(file))
    command("delete", "math", "--yes")
    assert command("import", str(file), "--json") == {"name": "math", "evicted": []}
    assert command("import", str(file), "--name", "second") == "second\n"
    assert {entry.name for entry in home.list()} == {"math", "second"}
    command("import", str(file), "--replace")
    # A file without a name in it, as older versions wrote them, is one of the store's.
    older = tmp_path / "older.adapter"
    older.write_bytes((home.folder / "math.adapter").read_bytes())
    assert command("import", str(older)) == "older\n"
    command("export", "math", str(tmp_path / "math.onnx_adapter"), "--format", "onnx-adapter")
    assert read_adapter(tmp_path / "math.onnx_adapter").keys() == small().lora.keys()


def test_the_command_asks_before_it_deletes(home: AdapterStore) -> None:
    home.save("math", small(1))
    for answer in ("n\n", ""):
        with pytest.raises(OmniDraftError, match=r"[Nn]othing was deleted"):
            command("delete", "math", stdin=answer)
    assert len(home.list()) == 1
    assert command("delete", "math", "--json", stdin="y\n") == {"deleted": "math"}
    home.save("math", small(1))
    command("delete", "math", "--yes")
    assert home.list() == []
    with pytest.raises(ModelNotFoundError):
        command("delete", "math", "--yes")


def test_the_commands_errors_end_with_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "omnidraft", "adapters", "show", "../math"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMNIDRAFT_DATA": str(tmp_path)},
        timeout=60,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: '../math' cannot name an adapter")
