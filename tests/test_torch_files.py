"""Weights that PyTorch saved: read as they are, and nothing of the file is ever run."""

from __future__ import annotations

import collections
import io
import json
import os
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
from checkpoint_files import (
    VOCAB,
    Weights,
    all_weights,
    assert_same,
    random_weights,
    write_companions,
    write_folder,
)
from needs import needs

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.checkpoint.torch_files import TorchFile
from omnidraft.runtime.engines import engine_of
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError

KINDS = {"float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "float64": "Double"}


class Storage:
    """What a tensor's numbers are called in a pickle."""

    def __init__(self, kind: str, key: str, count: int) -> None:
        self.label = ("storage", Name("torch", f"{kind}Storage"), key, "cpu", count)


class Name:
    """A name of a module, written as such."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Call:
    """A call of such a name."""

    def __init__(self, module: str, name: str, *arguments: Any) -> None:
        self.parts = (Name(module, name), arguments)


class Pairs:
    """A dict by its items, whose keys Python itself might not hash."""

    def __init__(self, items: list[tuple[Any, Any]]) -> None:
        self.items = items


class Pickler(pickle._Pickler):
    """Writes pickles as PyTorch's, whose names need not be importable here."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def persistent_id(self, value: Any) -> Any:
        return value.label if isinstance(value, Storage) else None

    def save_name(self, value: Name) -> None:
        self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        self.memoize(value)

    def save_call(self, value: Call) -> None:
        for part in value.parts:
            self.save(part)
        self.write(pickle.REDUCE)

    def save_pairs(self, value: Pairs) -> None:
        self.write(pickle.EMPTY_DICT)
        for key, each in value.items:
            self.save(key)
            self.save(each)
            self.write(pickle.SETITEM)

    dispatch[Name] = save_name
    dispatch[Call] = save_call
    dispatch[Pairs] = save_pairs


def pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue()


def tensor(storage: Storage, offset: Any, shape: Any, strides: Any) -> Call:
    hooks = Call("collections", "OrderedDict")
    return Call("torch._utils", "_rebuild_tensor_v2", storage, offset, shape, strides, False, hooks)


def archive(
    path: Path, data: bytes, storages: dict[str, bytes], compression: int = zipfile.ZIP_STORED
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("archive/data.pkl", data)
        file.writestr("archive/byteorder", "little")
        for key, content in storages.items():
            file.writestr(f"archive/data/{key}", content)
        file.writestr("archive/version", "3\n")
    return path


def write_bin(path: Path, weights: Weights) -> Path:
    """As ``torch.save(model.state_dict())`` writes it."""
    state, storages = {}, {}
    for i, (name, value) in enumerate(weights.items()):
        strides = tuple(stride // value.itemsize for stride in value.strides)
        whole = Storage(KINDS[value.dtype.name], str(i), value.size)
        state[name] = tensor(whole, 0, value.shape, strides)
        storages[str(i)] = value.tobytes(order="A")
    return archive(path, pickled(state), storages)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_safetensors(tmp_path: Path, kind: str) -> None:
    dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else np.dtype(kind)
    weights = {name: value.astype(dtype) for name, value in random_weights().items()}
    expected = all_weights(open_checkpoint(write_folder(tmp_path / "safe", weights)))
    folder = tmp_path / "torch"
    write_companions(folder)
    # A matrix that lies by columns is one, too.
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name] = np.asfortranarray(weights[name])
    write_bin(folder / "pytorch_model.bin", weights)
    assert engine_of(folder) == "transformers"
    checkpoint = open_checkpoint(folder)
    assert_same(all_weights(checkpoint), expected)
    np.testing.assert_array_equal(checkpoint.rows("1.up", 3, 7), expected["1.up"][3:7])


def test_shards(tmp_path: Path) -> None:
    weights = random_weights()
    expected = all_weights(open_checkpoint(write_folder(tmp_path / "safe", weights)))
    folder = tmp_path / "torch"
    write_companions(folder)
    where = {}
    for i in range(2):
        part = {name: weights[name] for name in sorted(weights)[i::2]}
        path = write_bin(folder / f"pytorch_model-{i + 1:05}-of-00002.bin", part)
        where |= dict.fromkeys(part, path.name)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert_same(all_weights(open_checkpoint(folder)), expected)
    path.unlink()
    with pytest.raises(ModelNotFoundError, match=f"lacks {path.name}"):
        open_checkpoint(folder)
    # Safetensors that are there are preferred.
    shutil.copy(tmp_path / "safe" / "model.safetensors", folder)
    assert_same(all_weights(open_checkpoint(folder)), expected)


def test_what_torch_itself_saves(tmp_path: Path) -> None:
    torch = needs("torch")
    weights = random_weights()
    expected = all_weights(open_checkpoint(write_folder(tmp_path / "safe", weights)))
    module = torch.nn.Module()
    state = collections.OrderedDict((name, torch.from_numpy(v)) for name, v in weights.items())
    up = "model.layers.1.mlp.up_proj.weight"
    state[up] = state[up].T.contiguous().T
    # Parts of one storage, as fused matrices are cut.
    q, k = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")
    both = torch.cat([state[q], state[k]])
    state[q], state[k] = both[:64], both[64:]
    state["model.norm.weight"] = torch.nn.Parameter(state["model.norm.weight"])
    state._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
    folder = tmp_path / "torch"
    write_companions(folder)
    path = folder / "pytorch_model.bin"
    torch.save(state, path)
    assert_same(all_weights(open_checkpoint(folder)), expected)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    write_companions(folder, tie_word_embeddings=True)
    torch.save(state, path)
    assert open_checkpoint(folder).decoder.tied_embeddings
    # Before 1.6.
    torch.save(state, path, _use_new_zipfile_serialization=False)
    with pytest.raises(OmniDraftError, match=r"PyTorch had before 1\.6"):
        open_checkpoint(folder)


# --- hostile files -----------------------------------------------------------------------------


class Runs:
    """Python's own way to run something when a pickle is read."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def hostile(touched: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that would make a file, and what each is refused for."""
    command = f"touch {touched}"
    shell = b"cos\nsystem\n(S'" + command.encode() + b"'\ntR."
    return {
        "os.system": (pickled(Call("os", "system", command)), "os.system"),
        "reduce": (pickle.dumps(Runs(os.system, command), 2), "posix.system|nt.system"),
        "protocol 4": (pickle.dumps(Runs(os.system, command), 4), "posix.system|nt.system"),
        "protocol 0": (shell, "os.system"),
        "eval": (pickle.dumps(Runs(eval, f"open({str(touched)!r}, 'w')"), 2), "builtin.*eval"),
        "exec": (pickled(Call("builtins", "exec", f"open({str(touched)!r}, 'w')")), "exec"),
        "open": (pickled({"a": Call("io", "open", str(touched), "w")}), "io.open"),
        "getattr": (pickled(Call("builtins", "getattr", Name("os", "x"), "y")), "getattr"),
        "torch.load": (pickled(Call("torch", "load", "x")), "torch.load"),
        "storage called": (pickled(Call("torch", "FloatStorage", 1 << 40)), "FloatStorage"),
        "dict with arguments": (pickled(Call("collections", "OrderedDict", [[1, 2]])), "OrderedD"),
        "nested name": (b"\x80\x04\x8c\x02os\x8c\x09system.io\x93.", "os.system.io"),
        "instance": (b"(S'touch x'\nios\nsystem\n.", "STRING|INST"),
        "object": (b"(cos\nsystem\nS'x'\no.", "os.system"),
        "new object": (b"\x80\x02cos\nsystem\n)\x81.", "os.system"),
        "extension": (b"\x80\x02\x82\x01.", "EXT1"),
        "new dict": (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "NEWOBJ"),
        "persistent id": (b"Pos.system\n.", "PERSID"),
        "buffer": (b"\x80\x05\x97.", "NEXT_BUFFER"),
        "no weights": (pickled({"epoch": 3}), "epoch"),
        "nested": (pickled({"state_dict": {}}), "state_dict"),
    }


@pytest.mark.parametrize("name", hostile(Path("x")))
def test_nothing_is_run(tmp_path: Path, name: str) -> None:
    touched = tmp_path / "touched"
    data, said = hostile(touched)[name]
    path = archive(tmp_path / "pytorch_model.bin", data, {})
    before = set(sys.modules)
    with pytest.raises(OmniDraftError, match=said):
        TorchFile(path)
    assert not touched.exists()
    assert set(sys.modules) == before
    path.write_bytes(data)  # with no archive around it
    with pytest.raises(OmniDraftError):
        TorchFile(path)
    assert not touched.exists()


def test_the_pickles_would_run(tmp_path: Path) -> None:
    """Python's unpickler runs what is refused here."""
    for name in ("reduce", "protocol 0", "protocol 4", "eval"):
        touched = tmp_path / name.replace(" ", "-")
        pickle.loads(hostile(touched)[name][0])
        assert touched.exists()


STORAGE = Storage("Float", "0", 6)


@pytest.mark.parametrize(
    "value",
    [
        tensor(STORAGE, 0, (2, 4), (4, 1)),
        tensor(STORAGE, 1, (2, 3), (3, 1)),
        tensor(STORAGE, 0, (2, 3), (4, 1)),
        tensor(STORAGE, 0, (1 << 40, 1 << 40), (0, 0)),
        tensor(STORAGE, 0, (7,), (0,)),
        tensor(STORAGE, -1, (2,), (1,)),
        tensor(STORAGE, 0, (2,), (-1,)),
        tensor(STORAGE, 0, (2, 3), (1,)),
        tensor(STORAGE, 0, (1,) * 40, (1,) * 40),
        tensor(STORAGE, 0, (2.0,), (1,)),
        tensor(STORAGE, True, (2,), (1,)),
        tensor(STORAGE, "0", (2,), (1,)),
        tensor(STORAGE, 0, [2], (1,)),
        tensor(Storage("Float", "0", 7), 0, (2,), (1,)),
        tensor(Storage("Float", "0", 1 << 60), 0, (2,), (1,)),
        tensor(Storage("Double", "0", 6), 0, (2,), (1,)),
        tensor(Storage("Float", "1", 6), 0, (2,), (1,)),
        tensor(Storage("Float", "../version", 0), 5, (2,), (1,)),
        Call("torch._utils", "_rebuild_tensor_v2"),
        Call("torch._utils", "_rebuild_parameter"),
        Call("torch._utils", "_rebuild_parameter", 3),
    ],
)
def test_tensors_that_lie_outside_their_file(tmp_path: Path, value: Call) -> None:
    path = archive(tmp_path / "pytorch_model.bin", pickled({"a": value}), {"0": bytes(24)})
    with pytest.raises(DamagedFileError):
        TorchFile(path).get_slice("a")


@pytest.mark.timeout(60)
def test_keys_that_are_no_names(tmp_path: Path) -> None:
    nested: Any = ()
    for _ in range(60):
        nested = (nested, nested)  # whose hash takes 2 ** 60 steps
    whole = tensor(Storage("Float", "0", 16), 0, (4, 4), (4, 1))
    write_companions(tmp_path)
    for key in (nested, (1,), None, Name("torch", "FloatStorage"), 3, 0.5, True):
        pickled_state = pickled(Pairs([(key, whole)]))
        path = archive(tmp_path / "pytorch_model.bin", pickled_state, {"0": bytes(64)})
        with pytest.raises(OmniDraftError, match=r"as a key|more than a model's weights"):
            TorchFile(path)


def test_archives_that_are_compressed(tmp_path: Path) -> None:
    """A megabyte could become a terabyte; PyTorch never compresses."""
    state = pickled({"a": tensor(Storage("Float", "0", 1 << 20), 0, (1 << 20,), (1,))})
    content = {"0": bytes(4 << 20)}
    path = archive(tmp_path / "pytorch_model.bin", state, content, zipfile.ZIP_DEFLATED)
    with pytest.raises(DamagedFileError, match="compressed"):
        TorchFile(path)


def test_an_empty_tensor(tmp_path: Path) -> None:
    state = pickled({"a": tensor(Storage("Float", "0", 0), 0, (0, 3), (3, 1))})
    path = archive(tmp_path / "pytorch_model.bin", state, {"0": b""})
    assert TorchFile(path).get_slice("a").get_shape() == [0, 3]


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    folder = tmp_path / "torch"
    write_companions(folder)
    path = write_bin(folder / "pytorch_model.bin", random_weights())
    whole = path.read_bytes()
    for size in (0, 3, 100, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedFileError):
            open_checkpoint(folder)
    path.write_bytes(whole)
    assert open_checkpoint(folder).rows("embedding").shape == (VOCAB, 64)
