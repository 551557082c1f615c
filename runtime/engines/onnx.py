"""Run a converted decoder with ONNX Runtime on the CPU, its KV cache updated in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from omnidraft.runtime.engines.environment import Measured, measured_here
from omnidraft.runtime.engines.failures import cannot_run
from omnidraft.runtime.engines.model import (
    CacheCopy,
    check_pass,
    check_truncation,
    reserve_cache,
)
from omnidraft.runtime.engines.onnx_session import cpu_session, pass_options
from omnidraft.runtime.engines.registry import EngineSpec
from omnidraft.runtime.engines.tree import Path as TreePath
from omnidraft.runtime.engines.tree import TokenTree
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.storage.lora import LoraWeights, complete_adapter, sizes_beside_rank
from omnidraft.runtime.storage.manifest import BUNDLE_FILE, MANIFEST_FILE, Manifest

GRAPH_FILE = "model.onnx"
# The graph sees a prefix of the cache, of this granularity: two tiles of kernels_native/.
LENGTH_STEP = 96
_KEY_TILE = LENGTH_STEP // 2
# Paths in a tree are padded to a multiple of so many slots: ONNX Runtime plans each shape anew.
_DEPTH_STEP = 8
# Longer passes are cut, which bounds the memory of one.
MAX_PASS = 256
_DRAFTER_CONTEXT = 8192


class OnnxModel:
    """A ``CausalModel`` over a folder that ``export.conversion.convert`` wrote, or over an
    exported drafter's bundle.

    Args:
        folder: the converted model, or the bundle.
        threads: threads that work on one pass; at most the manifest's ``max_threads`` do, so that
            results stay batch-invariant.
        max_length: longest sequence in tokens; default: the model's context length, of a drafter
            at most 8,192, since it keeps the recent part of a longer text. Memory for the cache is
            reserved for it, and taken only as the sequence grows.

    Raises:
        ModelNotFoundError: the folder holds no converted model.
        DamagedFileError: a file is missing, of another size, or refused by ONNX Runtime; in a
            bundle also: fails its checksum.
        OmniDraftError: see ``cpu_session``; or the memory cannot be reserved.
    """

    def __init__(
        self,
        folder: Path,
        *,
        threads: int = 2,
        max_length: int | None = None,
    ) -> None:
        description = describe(folder)
        graph = folder / description.graph
        self._vocab_size = description.vocab_size
        self._own_length = description.context_length
        self._held: list[int] = []
        self._tree: TokenTree | None = None

        self._threads = min(threads, description.max_threads or threads)
        self.least_pass = description.measured.get(self._threads, Measured(0)).least_pass
        """Tokens that a pass takes at least: see ``Measured``."""
        options = pass_options(self._threads)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        self._session = cpu_session(graph, options)
        self._binding = self._session.io_binding()

        inputs = {value.name: value.shape for value in self._session.get_inputs()}
        types = {value.name: value.type for value in self._session.get_inputs()}
        # In a bundle for any program attention takes the whole buffer and is told how much of it is
        # filled; our own sees a prefix: see export/graphs.
        self._told_length = "total_length" in inputs
        outputs = {value.name: value.shape for value in self._session.get_outputs()}
        bound = _DRAFTER_CONTEXT if "hidden" in outputs else self._own_length
        self._max_length = min(self._own_length, bound if max_length is None else max_length)
        self._capacity = -(-self._max_length // LENGTH_STEP) * LENGTH_STEP
        names = [name for name in inputs if name.startswith("past.")]
        shape = [n if isinstance(n, int) else self._capacity for n in inputs[names[0]]]
        # One array for keys and values, in turn, of all layers.
        half = types[names[0]] == "tensor(float16)"
        number = np.float16 if half else np.float32
        reserved = reserve_cache({"": [len(names), *shape]}, number, self._max_length)
        self._cache: NDArray[np.floating[Any]] = reserved[""]
        self._caches: dict[str, NDArray[np.floating[Any]]] = {
            name.removeprefix("past."): cache
            for name, cache in zip(names, self._cache, strict=True)
        }
        # LoRA inputs have defaults of rank 0.
        defaults = self._session.get_overridable_initializers()
        self._lora_sizes = sizes_beside_rank({value.name: value.shape for value in defaults})
        self._adapter: LoraWeights | None = None
        self._tokens = np.zeros((1, MAX_PASS), np.int64)
        self._positions = np.zeros((1, MAX_PASS), np.int64)
        self._last_position = np.zeros(1, np.int32)
        self._total_length = np.zeros((), np.int32)
        self._first_row = np.zeros(1, np.int64)
        # What is computed for each row that is asked for, by the output's name.
        self._rows = {
            name: np.empty((1, 0, shape[2]), np.float32)
            for name, shape in outputs.items()
            if name in ("logits", "hidden")
        }
        self._last_row = 0
        self._bound_pass = (0, 0)
        self._bound_length = 0
        self._bound_rows: tuple[int, int] | None = None
        self._values: dict[str, ort.OrtValue] = {}
        self._bind_input("first_row", self._first_row)
        if self._told_length:
            self._bind_input("last_position", self._last_position)
            self._bind_input("total_length", self._total_length)

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""
        return self._vocab_size

    @property
    def length(self) -> int:
        """Number of tokens in the KV cache."""
        return len(self._held)

    @property
    def held(self) -> Sequence[int]:
        """See ``KnowsTokens``."""
        return self._held if self._tree is None else self._held[: self._tree.chain]

    @property
    def max_length(self) -> int:
        """Longest sequence the model can hold, in tokens."""
        return self._max_length

    @property
    def own_length(self) -> int:
        """See ``LimitedContext``."""
        return self._own_length

    @property
    def threads(self) -> int:
        """How many threads work on a pass."""
        return self._threads

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states; 0 where the graph has no such output: see ``HiddenStates``.

        Exported drafters' graphs have it, converted targets' do not.
        """
        return self._rows["hidden"].shape[2] if "hidden" in self._rows else 0

    def last_hidden(self) -> NDArray[np.float32]:
        """float32 [hidden_size] of the last token of the last ``forward``, a view: see
        ``HiddenStates``.
        """
        hidden: NDArray[np.float32] = self._rows["hidden"][0, self._last_row]
        return hidden

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that a token takes."""
        return self._cache.nbytes // self._capacity

    def forward(
        self, tokens: Sequence[int] | NDArray[np.int64], rows: int | None = None
    ) -> NDArray[np.float32]:
        """Append ``tokens`` and return logits: see ``CausalModel.forward``.

        The array is a view of a buffer that the next ``forward`` overwrites.

        Raises:
            ContextOverflowError: ``length + n > max_length``; the cache is unchanged.
            ValueError: no tokens, a token outside the vocabulary, or ``rows`` outside 1…n.
        """
        if self._tree is not None:
            raise self._tree.refuse("there is no ordinary pass")
        ids, rows = check_pass(self, tokens, rows)
        return self._forward(ids, rows)

    @property
    def scores_trees(self) -> bool:
        """See ``ScoresTrees``: not where a bundle is for any program."""
        return not self._told_length

    def forward_tree(
        self,
        tokens: Sequence[int] | NDArray[np.int64],
        parents: Sequence[int] | NDArray[np.int64],
        rows: int | None = None,
    ) -> NDArray[np.float32]:
        """Append nodes of a tree and return logits: see ``ScoresTrees.forward_tree``.

        Raises:
            ContextOverflowError, ValueError, OmniDraftError: see there.
        """
        if not self.scores_trees:
            raise OmniDraftError(
                "A drafter that was exported for any program scores no trees of tokens. Load the "
                "checkpoint that it was made of."
            )
        ids, rows = check_pass(self, tokens, rows)
        tree = self._tree or TokenTree(self.length)
        paths = tree.paths(parents, len(ids))
        logits = self._forward(ids, rows, tree.chain, paths)
        tree.grow(paths)
        self._tree = tree
        return logits

    def keep(self, path: Sequence[int]) -> None:
        """End the tree: see ``ScoresTrees.keep``."""
        tree = self._tree or TokenTree(self.length)
        layers, values = len(self._cache) // 2, self._cache[1::2]
        # Keys lie in tiles [kv_heads, head_size, _KEY_TILE].
        keys = self._cache[::2].reshape(layers, self._capacity // _KEY_TILE, -1, _KEY_TILE)
        for source, target in tree.moves(path):  # of all layers at once
            values[:, target] = values[:, source]
            key = keys[:, source // _KEY_TILE, :, source % _KEY_TILE]
            keys[:, target // _KEY_TILE, :, target % _KEY_TILE] = key
        self._held[tree.chain :] = [self._held[slot] for slot in path]
        self._tree = None

    def _forward(
        self, ids: NDArray[np.int64], rows: int, chain: int = 0, paths: Sequence[TreePath] = ()
    ) -> NDArray[np.float32]:
        """Append tokens, or nodes of a tree behind a chain, and return the last rows of logits."""
        count = len(ids)
        if rows > self._rows["logits"].shape[1]:
            for name, held in self._rows.items():
                self._rows[name] = np.empty((1, rows, held.shape[2]), np.float32)
            self._bound_rows = None
        done = 0
        for start in range(0, count, MAX_PASS):
            part = ids[start : start + MAX_PASS]
            wanted = min(len(part), max(0, start + len(part) - (count - rows)))
            place = (self.length + start, done, wanted)
            if paths:
                self._pass(part, *place, chain, paths[start : start + MAX_PASS])
            else:
                self._pass(part, *place)
            done += wanted
        self._held += ids.tolist()
        self._last_row = rows - 1
        return self._rows["logits"][0, :rows]

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the KV cache: see ``CausalModel.truncate``."""
        check_truncation(self, length)
        if self._tree is not None and length > self._tree.chain:
            raise self._tree.refuse(f"nothing is cut to {length} tokens")
        self._tree = None
        del self._held[length:]

    def copy_cache(self) -> CacheCopy | None:
        """See ``CopiesCache``: not where a bundle is for any program."""
        if self._told_length:
            return None
        held = list(self.held)
        return CacheCopy(held, self._cache[:, : self._rounded(len(held))].copy())

    def put_cache(self, copy: CacheCopy) -> None:
        """See ``CopiesCache``."""
        self._tree = None
        self._cache[:, : copy.state.shape[1]] = copy.state
        self._held = list(copy.tokens)

    @staticmethod
    def _rounded(length: int) -> int:
        """Slots that whole tiles of keys take."""
        return -(-length // _KEY_TILE) * _KEY_TILE

    @property
    def adapter(self) -> LoraWeights | None:
        """See ``TakesAdapters``."""
        return self._adapter

    def set_adapter(self, adapter: LoraWeights | None) -> None:
        """Use a LoRA adapter from now on; the KV cache, which the old weights filled, is emptied.

        Args:
            adapter: see ``omnidraft.runtime.storage.lora``; None: the base model, exactly.

        Raises:
            OmniDraftError: the adapter does not fit the model; the one in use stays.
        """
        for name, values in complete_adapter(adapter, self._lora_sizes).items():
            self._bind_input(name, values)
        self._adapter = adapter
        self.truncate(0)

    def _pass(
        self,
        tokens: NDArray[np.int64],
        past: int,
        row: int,
        rows: int,
        chain: int = 0,
        paths: Sequence[TreePath] = (),
    ) -> None:
        """Run the graph once; write the last ``rows`` rows of logits from row ``row`` on."""
        padding = max(0, self.least_pass - len(tokens))
        if padding:  # the same token at the same place again
            tokens = np.pad(tokens, (0, padding), mode="edge")
        count = len(tokens)
        end = past + count - padding
        depth = -(-max(map(len, paths), default=0) // _DEPTH_STEP) * _DEPTH_STEP
        if (count, depth) != self._bound_pass:
            self._bind_input("tokens", self._tokens[:, :count])
            if not self._told_length:
                self._bind_input("positions", self._positions[:, :count])
                self._paths = np.full((count, depth), -1)
                self._bind_input("paths", self._paths)
            self._bound_pass = (count, depth)
        length = -(-end // LENGTH_STEP) * LENGTH_STEP
        if self._told_length:
            length = self._capacity
        if length != self._bound_length:
            for name, cache in self._caches.items():
                part = cache if self._told_length else cache[:length]
                value = self._bind_input(f"past.{name}", part)
                self._binding.bind_ortvalue_output(f"present.{name}", value)
            self._bound_length = length
        if (row, rows) != self._bound_rows:
            for name, held in self._rows.items():
                value = ort.OrtValue.ortvalue_from_numpy(held[:, row : row + rows])
                self._values[name] = value
                self._binding.bind_ortvalue_output(name, value)
            self._bound_rows = (row, rows)
        self._tokens[0, :count] = tokens
        if self._told_length:
            self._last_position[0] = end - 1
            self._total_length[()] = end
        elif paths:
            for i in range(count):
                path = paths[min(i, len(paths) - 1)]
                self._positions[0, i] = chain + len(path) - 1
                self._paths[i, : len(path)] = path
                self._paths[i, len(path) :] = -1
        else:
            self._positions[0, :count] = np.minimum(np.arange(past, past + count), end - 1)
        self._first_row[0] = count - rows
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime's errors share no narrower base class.
            raise cannot_run(error) from error

    def _bind_input(self, name: str, array: NDArray[Any]) -> ort.OrtValue:
        value = ort.OrtValue.ortvalue_from_numpy(array)
        # Bound values share the array's memory; the reference keeps it alive.
        self._values[name] = value
        self._binding.bind_ortvalue_input(name, value)
        return value


@dataclass(frozen=True)
class Description:
    """What a folder's manifest says of its decoder."""

    graph: str
    vocab_size: int
    context_length: int
    max_threads: int | None
    measured: Mapping[int, Measured] = field(default_factory=dict)


def describe(folder: Path) -> Description:
    """What a converted model's or a bundle's manifest says of its decoder.

    Raises:
        ModelNotFoundError, DamagedFileError: as ``OnnxModel``.
    """
    if (folder / BUNDLE_FILE).is_file():
        from omnidraft.runtime.storage.bundle import Bundle

        bundle = Bundle.load(folder)
        geometry = bundle.geometry
        return Description(
            bundle.decoders[0].file,
            geometry.vocab_size,
            geometry.context_length,
            bundle.max_threads,
        )
    manifest = Manifest.load(folder)
    manifest.verify(folder)
    return Description(
        GRAPH_FILE,
        manifest.vocab_size,
        manifest.context_length,
        manifest.max_threads,
        measured_here(manifest),
    )


ENGINE = EngineSpec(
    load=lambda path, threads, context: OnnxModel(path, threads=threads, max_length=context),
    opens=lambda path: (path / MANIFEST_FILE).is_file(),
    what="a folder that omnidraft converted or exported",
    takes_context=True,
)
