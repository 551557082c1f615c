"""Trees of tokens: every node's row is the row of its path, decoded one token at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import needs
from numpy.typing import NDArray
from test_convert import LLAMA, random_weights, write_safetensors

from omnidraft.export.checkpoint import open_checkpoint
from omnidraft.export.conversion import convert, convert_drafter
from omnidraft.export.graphs.drafter import write_drafter_graph
from omnidraft.runtime.engines.model import ScoresTrees, tree_scorer
from omnidraft.runtime.engines.onnx import LENGTH_STEP, MAX_PASS, OnnxModel
from omnidraft.runtime.engines.tree import TokenTree
from omnidraft.runtime.errors import ContextOverflowError, OmniDraftError
from omnidraft.runtime.storage.manifest import describe_files

pytestmark = pytest.mark.usefixtures("all_cores")

TOKENS = np.random.default_rng(4).integers(0, LLAMA["vocab_size"], 2 * MAX_PASS)

WINDOWED = LLAMA | {
    "hidden_act": "gelu_pytorch_tanh",
    "head_dim": 32,
    "sliding_window": 9,
    "query_pre_attn_scalar": 32,
    "tie_word_embeddings": True,
}
CAPPED = WINDOWED | {
    "model_type": "gemma2",
    "attn_logit_softcapping": 0.5,
    "final_logit_softcapping": 3.0,
}
NORMED = WINDOWED | {"model_type": "gemma3_text", "num_hidden_layers": 7}


def write_checkpoint(folder: Path, config: dict[str, Any]) -> Path:
    """A tiny Llama, or Gemma of two generations, with random weights."""
    weights = random_weights(config)
    if config["model_type"] != "llama":
        rng = np.random.default_rng(1)
        sizes = dict.fromkeys(("pre_feedforward_layernorm", "post_feedforward_layernorm"), 64)
        if config["model_type"] == "gemma3_text":
            sizes |= {"self_attn.q_norm": 32, "self_attn.k_norm": 32}
        for i in range(config["num_hidden_layers"]):
            for name, size in sizes.items():
                norm = rng.normal(0, 0.3, size).astype(np.float32)
                weights[f"model.layers.{i}.{name}.weight"] = norm
    return write_safetensors(folder, config, weights)


class Pair:
    """A model that scores trees, and the same model for plain decoding."""

    def __init__(self, folder: Path, threads: int = 2) -> None:
        self.folder = folder
        self.model = OnnxModel(folder, threads=threads)
        self.plain = OnnxModel(folder, threads=threads)

    def restart(self, chain: int, poison: bool = True) -> None:
        """Both hold a text; what lies behind it is no number."""
        for model in (self.model, self.plain):
            model.truncate(0)
            if poison:
                for cache in model._caches.values():
                    cache.fill(np.nan)
            if chain:
                model.forward(TOKENS[:chain], rows=1)

    def row(self, chain: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The row of the last of some tokens behind the text, decoded one at a time."""
        self.plain.truncate(chain)
        for token in tokens:
            row = self.plain.forward([token])
        return row[0]


@pytest.fixture(
    scope="module",
    params=[
        ("4bit", LLAMA, 2),
        ("8bit", LLAMA | {"num_key_value_heads": 1, "head_dim": 64}, 1),
        ("float32", LLAMA | {"num_key_value_heads": 4}, 2),
        ("8bit", CAPPED, 2),
        ("float32", NORMED, 1),
        ("4bit", NORMED, 2),
    ],
    ids=lambda p: f"{p[0]}-{p[1]['model_type']}-{p[2]}",
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    quantization, config, threads = request.param
    folder = tmp_path_factory.mktemp("model")
    manifest = convert(write_checkpoint(folder / "source", config), folder / "model", quantization)
    assert manifest.batch_invariant
    return Pair(folder / "model", threads)


def same(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))


@settings(max_examples=25)
@given(data=st.data())
def test_nodes_are_the_rows_of_their_paths(pair: Pair, data: st.DataObject) -> None:
    """Trees that grow pass by pass, near the bounds of tiles and of the bound cache; after each
    a path is kept, decoded on, and a further tree grown."""
    chain = data.draw(
        st.one_of(st.integers(0, 12), st.integers(40, 50), st.integers(LENGTH_STEP - 12, 100))
    )
    least_pass = data.draw(st.sampled_from([1, 2]))
    pair.model.least_pass = pair.plain.least_pass = least_pass
    pair.restart(chain)
    text = TOKENS[:chain].tolist()
    for _ in range(data.draw(st.integers(1, 2))):
        tree = TokenTree(chain)
        tokens: list[int] = []
        paths: list[tuple[int, ...]] = []
        for _ in range(data.draw(st.integers(1, 3))):
            count = data.draw(st.integers(1, 9))
            start = chain + len(tokens)
            parents = [data.draw(st.integers(chain - 1, start + i - 1)) for i in range(count)]
            layer = data.draw(st.lists(st.integers(0, 129), min_size=count, max_size=count))
            rows = data.draw(st.integers(1, count))
            found = pair.model.forward_tree(layer, parents, rows)
            assert found.shape[0] == rows and found.flags.c_contiguous
            tokens += layer
            grown = tree.paths(parents, count)
            tree.grow(grown)
            paths += grown
            assert pair.model.length == chain + len(tokens)
            for row, path in zip(found, paths[-rows:], strict=True):
                assert same(row, pair.row(chain, [tokens[slot - chain] for slot in path]))
        path = data.draw(st.sampled_from([(), *paths]))
        pair.model.keep(path)
        accepted = [tokens[slot - chain] for slot in path]
        text += accepted
        assert list(pair.model.held) == text and pair.model.length == len(text)
        # What the tree left behind is not seen.
        pair.plain.truncate(chain)
        for token in accepted:
            pair.plain.forward([token])
        ahead = data.draw(st.lists(st.integers(0, 129), min_size=1, max_size=4))
        assert same(
            pair.model.forward(ahead),
            np.concatenate([pair.plain.forward([token]).copy() for token in ahead]),
        )
        text += ahead
        chain = len(text)


def test_a_tree_of_several_passes_is_cut_without_a_trace(pair: Pair) -> None:
    """Also where a node follows one of the pass before, and one token of a pass is left."""
    pair.restart(50)
    count = MAX_PASS + 1
    rng = np.random.default_rng(0)
    parents = [49 + int(rng.integers(max(0, i - 90), i + 1)) for i in range(count - 1)]
    parents.append(50 + MAX_PASS - 1)
    found = pair.model.forward_tree(TOKENS[:count], parents).copy()
    paths = TokenTree(50).paths(parents, count)
    for node in (0, 100, MAX_PASS - 1, MAX_PASS):
        tokens = [int(TOKENS[slot - 50]) for slot in paths[node]]
        assert same(found[node], pair.row(50, tokens))
    pair.model.keep(paths[-1])
    assert same(pair.model.forward([7])[0], pair.plain.forward([7])[0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_node_that_is_no_number_reaches_its_descendants_only(pair: Pair, value: float) -> None:
    pair.restart(20, poison=False)
    # 20 and 21 follow the text, 22 and 23 those.
    first = pair.model.forward_tree(TOKENS[:2], [19, 19]).copy()
    pair.model._cache[1::2, 21] = value
    found = pair.model.forward_tree(TOKENS[2:4], [20, 21])
    assert same(found[0], pair.row(20, [int(TOKENS[0]), int(TOKENS[2])]))
    assert not np.isfinite(found[1]).any()
    assert np.isfinite(first).all()


def test_what_a_tree_refuses(pair: Pair) -> None:
    model = OnnxModel(pair.folder, max_length=20)
    model.forward(TOKENS[:10])
    for parents in ([8], [10], [-1], [9, 11], [9, 8], [9, 9, 9], []):
        with pytest.raises(ValueError, match=r"must follow|must have one"):
            model.forward_tree([1] * (2 if len(parents) != 1 else 1), parents)
    for tokens, rows in (([], None), ([130], None), ([1], 2)):
        with pytest.raises(ValueError):
            model.forward_tree(tokens, [9] * len(tokens), rows)
    with pytest.raises(ContextOverflowError, match="20"):
        model.forward_tree([1] * 11, [9] * 11)
    assert model.length == 10 and list(model.held) == TOKENS[:10].tolist()
    model.keep([])  # there is no tree, and nothing is dropped
    pair.restart(10)
    assert same(model.forward([1])[0], pair.row(10, [1]))

    model.forward_tree([1, 2, 3], [10, 10, 12])
    with pytest.raises(ContextOverflowError):
        model.forward_tree([1] * 7, [13] * 7)
    with pytest.raises(ValueError, match=r"slot 14 follows slot 9\b"):
        model.forward_tree([1], [9])
    with pytest.raises(ValueError, match="no ordinary pass while a tree is held: call keep"):
        model.forward([1])
    for length in (12, 14):
        with pytest.raises(ValueError, match="at most the 11 tokens"):
            model.truncate(length)
    for path in ([11, 12], [13], [12, 14], [10, 11], [-1], [12, 12]):
        with pytest.raises(ValueError, match="no path"):
            model.keep(path)
    # What is known is the text: which of the nodes become text is not known yet.
    assert model.length == 14 and len(model.held) == 11
    model.truncate(11)
    assert model.length == 11
    model.forward_tree([1, 2, 3], [10, 10, 12])
    model.truncate(4)
    pair.restart(4)
    assert same(model.forward([5])[0], pair.row(4, [5]))


def test_a_drafter_scores_trees(tmp_path: Path) -> None:
    """Its rows may depend on the size of a pass, by the rounding of inputs."""
    source = write_checkpoint(tmp_path / "source", LLAMA)
    convert_drafter(source, tmp_path / "drafter")
    pair = Pair(tmp_path / "drafter", threads=1)
    pair.restart(45)
    spread = pair.model.forward_tree(TOKENS[:5], [44, 44, 45, 47, 46]).std()
    paths = TokenTree(45).paths([44, 44, 45, 47, 46], 5)
    found = pair.model.forward_tree(TOKENS[5:7], [48, 49])
    for row, path in zip(found, [(*paths[3], 50), (*paths[4], 51)], strict=True):
        expected = pair.row(45, [int(TOKENS[slot - 45]) for slot in path])
        assert np.abs(row - expected).max() < 0.1 * spread
    pair.model.keep((*paths[4], 51))
    found = pair.model.forward([9])
    assert np.abs(found - pair.plain.forward([9])).max() < 0.1 * spread
    assert pair.model.last_hidden().shape == (64,)


def test_graphs_for_any_program_score_no_trees(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    manifest = convert_drafter(source, tmp_path / "drafter")
    # Its graph anew, as it is exported for phones.
    write_drafter_graph(open_checkpoint(source), tmp_path / "drafter", "8bit", lambda *_: None)
    files = describe_files(tmp_path / "drafter")
    dataclasses.replace(manifest, files=files).save(tmp_path / "drafter")
    model = OnnxModel(tmp_path / "drafter")
    assert isinstance(model, ScoresTrees) and tree_scorer(model) is None
    model.forward([1, 2])
    with pytest.raises(OmniDraftError, match="scores no trees"):
        model.forward_tree([1], [1])
    assert model.length == 2


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_transformers_scores_trees(tmp_path: Path, attention: str) -> None:
    needs("torch")
    needs("transformers")
    from omnidraft.runtime.engines.transformers import TransformersModel

    source = write_checkpoint(tmp_path, LLAMA)
    model, plain = TransformersModel(source), TransformersModel(source)
    model._model.set_attn_implementation(attention)
    rng = np.random.default_rng(0)
    for chain in (0, 1, 30):
        for each in (model, plain):
            each.truncate(0)
            if chain:
                each.forward(TOKENS[:chain])
        parents = [int(rng.integers(chain - 1, chain + i)) for i in range(14)]
        first = model.forward_tree(TOKENS[30:39], parents[:9])
        found = np.concatenate([first, model.forward_tree(TOKENS[39:44], parents[9:])])
        paths = TokenTree(chain).paths(parents, 14)
        tokens = [[int(TOKENS[30 + slot - chain]) for slot in path] for path in paths]
        for row, path in zip(found, tokens, strict=True):
            plain.truncate(chain)
            np.testing.assert_allclose(row, plain.forward(path)[-1], atol=1e-3)
        with pytest.raises(ValueError, match="while a tree is held"):
            model.forward([1])
        with pytest.raises(ValueError, match="while a tree is held"):
            model.truncate(chain + 1)
        deepest = max(range(14), key=lambda node: len(paths[node]))
        model.keep(paths[deepest])
        plain.truncate(chain)
        plain.forward(tokens[deepest])
        assert model.length == plain.length == chain + len(paths[deepest])
        np.testing.assert_allclose(model.forward([3]), plain.forward([3]), atol=1e-3)


def test_windows_of_transformers_score_no_trees(tmp_path: Path) -> None:
    needs("torch")
    needs("transformers")
    from omnidraft.runtime.engines.transformers import TransformersModel

    model = TransformersModel(write_checkpoint(tmp_path, CAPPED))
    assert tree_scorer(model) is None
    with pytest.raises(OmniDraftError, match="not all of its layers see the whole text"):
        model.forward_tree([1], [-1])
    assert model.forward([1]).shape == (1, LLAMA["vocab_size"])
