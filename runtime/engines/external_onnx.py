"""Run ONNX decoders that other tools wrote, recognised by the names of their inputs and outputs.

These graphs are taken as they are: most are not batch-invariant (see ``batch_noise``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from omnidraft.runtime.engines.failures import cannot_run
from omnidraft.runtime.engines.model import check_pass, check_truncation, reserve_cache
from omnidraft.runtime.engines.onnx_session import cpu_session, pass_options
from omnidraft.runtime.engines.registry import EngineSpec
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError
from omnidraft.runtime.storage.checkpoints import is_checkpoint
from omnidraft.runtime.storage.manifest import BUNDLE_FILE
from omnidraft.runtime.storage.reading import LARGEST_JSON, read_bounded, reading

# optimum's and transformers.js's names, the exact ones before the quantized ones.
_DECODER_FILES = (
    "decoder_model_merged.onnx",
    "model.onnx",
    "decoder_with_past_model.onnx",
    "model_q4.onnx",
    "model_quantized.onnx",
    "decoder_model_merged_quantized.onnx",
    "model_int8.onnx",
    "model_fp16.onnx",
)
_TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
# Of models that do not say their own.
_DEFAULT_MAX_LENGTH = 8192
# With a buffer that past and present share, a pass takes memory for all of it.
_SHARED_BUFFER_LENGTH = 8192
# Longer passes are cut: these graphs give logits for every token of a pass.
_MAX_PASS = 256


def find_decoder(folder: Path) -> Path | None:
    """The decoder graph of a folder, or None."""
    genai = folder / "genai_config.json"
    if genai.is_file():
        with reading(genai):
            graph = folder / str(_read_json(genai)["model"]["decoder"]["filename"])
            return graph if graph.is_file() else None
    for place in (folder, folder / "onnx"):
        for name in _DECODER_FILES:
            if (place / name).is_file():
                return place / name
    return None


class ExternalOnnxModel:
    """A ``CausalModel`` over an ONNX decoder with explicit KV inputs and outputs.

    The graph takes ``input_ids``, ``past_key_values.N.key`` / ``.value`` and, if it wants them,
    ``attention_mask``, ``position_ids``, ``use_cache_branch`` and ``num_logits_to_keep``; it
    returns ``logits`` and ``present.N.key`` / ``.value``. Where ``genai_config.json`` says so,
    past and present share one buffer and nothing is copied; otherwise the graph returns a longer
    cache at every step.

    Args:
        path: the folder, or the graph itself.
        threads: threads that work on one pass.
        max_length: longest sequence in tokens; default: the model's context, where past and
            present share one buffer at most 8,192.

    Raises:
        ModelNotFoundError: no decoder there.
        DamagedFileError: ONNX Runtime refuses the graph, or it has other inputs.
        OmniDraftError: see ``cpu_session``.
    """

    def __init__(self, path: Path, *, threads: int = 2, max_length: int | None = None) -> None:
        graph = path if path.is_file() else find_decoder(path)
        if graph is None:
            raise ModelNotFoundError(f"{path} holds no ONNX decoder.")
        self._session = cpu_session(graph, pass_options(threads))
        inputs = {value.name: value for value in self._session.get_inputs()}
        outputs = {value.name: value for value in self._session.get_outputs()}
        self._past_names = [name for name in inputs if name.startswith("past_key_values.")]
        present = {name: name.replace("past_key_values.", "present.") for name in self._past_names}
        if (
            "input_ids" not in inputs
            or "logits" not in outputs
            or not present
            or not set(present.values()) <= set(outputs)
        ):
            raise DamagedFileError(
                f"{graph} is not a decoder with a KV cache: it needs input_ids, past_key_values.* "
                "and gives logits, present.*. Export it again with its cache (text-generation-"
                "with-past)."
            )
        self._present = present
        self._extra = {
            name
            for name in ("attention_mask", "position_ids", "use_cache_branch", "num_logits_to_keep")
            if name in inputs
        }
        unknown = set(inputs) - {"input_ids", *self._past_names, *self._extra}
        if unknown:
            raise DamagedFileError(
                f"{graph} asks for inputs that are not known here: {', '.join(sorted(unknown))}."
            )
        self._ids_type = _TYPES[inputs["input_ids"].type]
        with reading(f"The configuration of {graph}"):
            config = _read_config(graph.parent)
        self._own_length = config.context_length
        bound = _SHARED_BUFFER_LENGTH if config.shared_buffer else self._own_length
        self._max_length = min(self._own_length, bound if max_length is None else max_length)
        self._length = 0
        shapes = {}
        for name in self._past_names:
            _, heads, _, size = inputs[name].shape
            # A dimension without a number in the graph is in the configuration.
            heads = heads if isinstance(heads, int) else config.kv_heads
            size = size if isinstance(size, int) else config.head_size
            if heads is None or size is None:
                raise DamagedFileError(
                    f"{graph.parent} needs the model's config.json: the graph does not state the "
                    "number and size of its key and value heads."
                )
            length = self._max_length if config.shared_buffer else 0
            shapes[name] = (1, heads, length, size)
        kind = _TYPES[inputs[self._past_names[0]].type]
        self._caches = reserve_cache(shapes, kind, self._max_length)
        self._binding = self._session.io_binding() if config.shared_buffer else None
        if self._binding is not None:
            self._shared_values = []  # keeps the memory alive that the binding points to
            for name, cache in self._caches.items():
                value = ort.OrtValue.ortvalue_from_numpy(cache)
                self._shared_values.append(value)
                self._binding.bind_ortvalue_input(name, value)
                self._binding.bind_ortvalue_output(present[name], value)
        # Graphs do not always state their vocabulary; a pass tells.
        columns = outputs["logits"].shape[-1]
        if not isinstance(columns, int):
            columns = self._pass(np.zeros(1, np.int64), 1).shape[-1]
            self.truncate(0)
        self._vocab_size = int(columns)

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""
        return self._vocab_size

    @property
    def length(self) -> int:
        """Number of tokens in the KV cache."""
        return self._length

    @property
    def max_length(self) -> int:
        """Longest sequence the model can hold, in tokens."""
        return self._max_length

    @property
    def own_length(self) -> int:
        """See ``LimitedContext``."""
        return self._own_length

    def forward(
        self, tokens: Sequence[int] | NDArray[np.int64], rows: int | None = None
    ) -> NDArray[np.float32]:
        """Append ``tokens`` and return logits: see ``CausalModel.forward``.

        Raises:
            ContextOverflowError: ``length + n > max_length``; the cache is unchanged.
            ValueError: no tokens, a token outside the vocabulary, or ``rows`` outside 1…n.
        """
        ids, rows = check_pass(self, tokens, rows)
        count = len(ids)
        parts = []
        for start in range(0, count, _MAX_PASS):
            part = ids[start : start + _MAX_PASS]
            wanted = min(len(part), start + len(part) - (count - rows))
            logits = self._pass(part, max(wanted, 1))
            if wanted > 0:
                parts.append(logits[-wanted:])
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return np.ascontiguousarray(joined, dtype=np.float32)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the KV cache: see ``CausalModel.truncate``."""
        check_truncation(self, length)
        self._length = length
        if self._binding is None:
            self._caches = {name: cache[:, :, :length] for name, cache in self._caches.items()}

    def _pass(self, ids: NDArray[np.int64], keep: int) -> NDArray[Any]:
        """Run the graph once; logits of at least the last ``keep`` tokens."""
        total = self._length + len(ids)
        feeds: dict[str, NDArray[Any]] = {"input_ids": ids[None].astype(self._ids_type)}
        if "attention_mask" in self._extra:
            feeds["attention_mask"] = np.ones((1, total), self._ids_type)
        if "position_ids" in self._extra:
            feeds["position_ids"] = np.arange(self._length, total, dtype=self._ids_type)[None]
        if "use_cache_branch" in self._extra:
            feeds["use_cache_branch"] = np.array([self._length > 0])
        if "num_logits_to_keep" in self._extra:
            feeds["num_logits_to_keep"] = np.array(keep, np.int64)
        try:
            logits = self._run(feeds)
        except Exception as error:  # ONNX Runtime's errors share no narrower base class.
            raise cannot_run(error) from error
        self._length = total
        first: NDArray[Any] = np.asarray(logits)[0]
        return first

    def _run(self, feeds: dict[str, NDArray[Any]]) -> Any:
        if self._binding is not None:
            for name, array in feeds.items():
                self._binding.bind_cpu_input(name, array)
            self._binding.bind_output("logits", "cpu")
            self._session.run_with_iobinding(self._binding)
            # Outputs come in the order of their first binding, and logits were bound last.
            return self._binding.get_outputs()[-1].numpy()
        names = ["logits", *self._present.values()]
        logits, *caches = self._session.run(names, feeds | self._caches)
        self._caches = dict(zip(self._past_names, caches, strict=True))
        return logits


@dataclass(frozen=True)
class _Config:
    """What a folder's configuration says of its decoder; None where it does not say."""

    context_length: int = _DEFAULT_MAX_LENGTH
    kv_heads: int | None = None
    head_size: int | None = None
    shared_buffer: bool = False
    """Whether past and present are to be one buffer (GroupQueryAttention)."""


def _read_config(folder: Path) -> _Config:
    if (folder / "genai_config.json").is_file():
        config = _read_json(folder / "genai_config.json")
        decoder = config["model"]["decoder"]
        return _Config(
            config["model"].get("context_length", _DEFAULT_MAX_LENGTH),
            decoder.get("num_key_value_heads"),
            decoder.get("head_size"),
            bool(config.get("search", {}).get("past_present_share_buffer", False)),
        )
    for place in (folder, folder.absolute().parent):  # optimum's layout, transformers.js's layout
        if (place / "config.json").is_file():
            config = _read_json(place / "config.json")
            config = config.get("text_config", config)
            heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
            head_size = config.get("head_dim") or (hidden // heads if heads and hidden else None)
            return _Config(
                config.get("max_position_embeddings", _DEFAULT_MAX_LENGTH),
                config.get("num_key_value_heads", heads),
                head_size,
            )
    return _Config()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(read_bounded(path, LARGEST_JSON))
        return value
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}.") from error


def _opens(path: Path) -> bool:
    if path.is_file():
        return path.suffix.lower() == ".onnx"
    if (path / "genai_config.json").is_file():
        return True
    # Of a folder that holds the weights, too, these are converted: the result is batch-invariant.
    return path.is_dir() and not is_checkpoint(path) and find_decoder(path) is not None


def _load(path: Path, threads: int, context: int | None) -> ExternalOnnxModel:
    if (path / BUNDLE_FILE).is_file():
        from omnidraft.runtime.storage.bundle import Bundle

        Bundle.load(path)  # its files are as they were written
    return ExternalOnnxModel(path, threads=threads, max_length=context)


ENGINE = EngineSpec(
    load=_load,
    opens=_opens,
    what="a folder with an ONNX decoder (genai_config.json, model.onnx or "
    "onnx/decoder_model_merged.onnx) and tokenizer.json",
    takes_context=True,
)
