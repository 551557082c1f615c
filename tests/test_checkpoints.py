"""Files of checkpoints as people have them: read whole, or refused by what is wrong with them."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest
from checkpoint_files import (
    VOCAB,
    all_weights,
    assert_same,
    gguf_tensors,
    random_weights,
    write_folder,
    write_gguf,
)

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.runtime.engines import engine_of
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.text.tokenizer import Tokenizer

# --- GGUF --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny.GGUF", "sha256-0123abcd", "tiny.bin", "tiny.gguf.part"])
def test_a_gguf_is_known_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    weights = random_weights()
    path = write_gguf(tmp_path / name, gguf_tensors(weights))
    folder = write_folder(tmp_path / "folder", weights)
    assert engine_of(path) == "transformers"
    assert_same(all_weights(open_checkpoint(path)), all_weights(open_checkpoint(folder)))
    assert Tokenizer.load(path).vocab_size == VOCAB


def test_a_gguf_by_name_only(tmp_path: Path) -> None:
    page = tmp_path / "tiny.gguf"
    page.write_text("<html>Sign in</html>")
    with pytest.raises(DamagedFileError, match="first bytes"):
        open_checkpoint(page)
    with pytest.raises(DamagedFileError, match="first bytes"):
        Tokenizer.load(page)
    with pytest.raises(ModelNotFoundError, match="holds no model"):
        engine_of(page.rename(tmp_path / "page.html"))


READABLE = ["F32", "F16", "F64", *sorted(kind.name for kind in gguf.quants._type_traits)]


@pytest.mark.parametrize("kind", READABLE)
def test_all_types_of_tensors(tmp_path: Path, kind: str) -> None:
    """Rows, those of interleaved heads and vectors too, are what the gguf library reads."""
    known = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[known]
    hidden, rng = 512, np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray:
        # With low bytes, so that no scale is infinite or no number.
        return rng.integers(0, 60, (*shape[:-1], shape[-1] // block * size), np.uint8)

    tensors = {
        name: np.ones((*value.shape[:-1], hidden), np.float32)
        for name, value in gguf_tensors(random_weights()).items()
    }
    for i in range(2):
        tensors[f"blk.{i}.ffn_down.weight"] = np.ones((hidden, 96), np.float32)
        tensors[f"blk.{i}.attn_q.bias"] = np.ones(64, np.float32)
        tensors[f"blk.{i}.attn_k.bias"] = np.ones(32, np.float32)
        tensors[f"blk.{i}.attn_v.bias"] = np.ones(32, np.float32)
        tensors[f"blk.{i}.attn_output.weight"] = np.ones((hidden, 64), np.float32)
    stored = {
        "blk.1.attn_k.weight": some(32, hidden),
        "blk.1.ffn_up.weight": some(96, hidden),
        "blk.1.ffn_norm.weight": some(hidden),
    }
    if 32 % block == 0:
        stored["blk.1.attn_k.bias"] = some(32)
    path = write_gguf(
        tmp_path / "tiny.gguf",
        tensors | stored,
        types=dict.fromkeys(stored, known),
        hidden=hidden,
    )
    expected = {}
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name in stored:
            values = tensor.data if kind == "F64" else gguf.dequantize(tensor.data, known)
            expected[tensor.name] = values.astype(np.float32)
    checkpoint = open_checkpoint(path)
    up = expected["blk.1.ffn_up.weight"]
    np.testing.assert_array_equal(checkpoint.rows("1.up"), up)
    np.testing.assert_array_equal(checkpoint.rows("1.up", 5, 9), up[5:9])
    np.testing.assert_array_equal(checkpoint.rows("1.mlp_norm"), expected["blk.1.ffn_norm.weight"])
    for name, place in (("1.k", "blk.1.attn_k.weight"), ("1.k.bias", "blk.1.attn_k.bias")):
        if (value := expected.get(place)) is not None:
            split = value.reshape(2, 8, 2, -1).swapaxes(1, 2).reshape(value.shape)
            np.testing.assert_array_equal(checkpoint.rows(name), split)
            np.testing.assert_array_equal(checkpoint.rows(name, 3, 20), split[3:20])


@pytest.mark.parametrize(
    ("kind", "said"), [(42, "42"), (153, "153"), (4, "4"), (9, "Q8_1"), (24, "I8"), (2**32 - 1, "")]
)
def test_a_type_of_tensors_that_is_not_read_is_named(tmp_path: Path, kind: int, said: str) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", gguf_tensors(random_weights()))
    data = bytearray(path.read_bytes())
    name = b"blk.0.ffn_up.weight"
    # Name, number of dimensions, two dimensions, type, offset.
    place = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4 + 16
    struct.pack_into("<I", data, place, kind)
    path.write_bytes(data)
    with pytest.raises(OmniDraftError, match=rf"ffn_up.weight is of type {said}") as caught:
        open_checkpoint(path)
    assert not isinstance(caught.value, DamagedFileError)
