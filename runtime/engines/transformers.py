"""Run a checkpoint with PyTorch and transformers, an optional extra, on the CPU or a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.engines.failures import cannot_load
from omnidraft.runtime.engines.model import check_pass, check_truncation
from omnidraft.runtime.engines.registry import EngineSpec
from omnidraft.runtime.engines.tree import TokenTree
from omnidraft.runtime.errors import MissingDependencyError, OmniDraftError
from omnidraft.runtime.storage.checkpoints import is_checkpoint
from omnidraft.runtime.storage.gguf import read_gguf_metadata


class TransformersModel:
    """A ``CausalModel`` over a Hugging Face checkpoint or a GGUF file.

    Args:
        path: a folder with config.json and weights, or a GGUF file.
        device: a torch device; default: ``cuda`` if there is one, else ``cpu``.
        dtype: a torch dtype's name; default: float32 on the CPU, the checkpoint's own on a GPU.
        threads: threads on the CPU, for the whole process.

    Raises:
        MissingDependencyError: torch, transformers or, for a GGUF file, accelerate is missing.
        DamagedFileError: transformers cannot load it.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        threads: int = 2,
    ) -> None:
        _check()
        import torch
        import transformers

        if path.is_file():
            with _extra():
                import accelerate  # noqa: F401 -- transformers reads GGUF files only with it
        self._torch: Any = torch
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if self._device == "cpu":
            torch.set_num_threads(threads)
        dtype = dtype or ("float32" if self._device == "cpu" else "auto")
        options: dict[str, Any] = {"dtype": dtype, "local_files_only": True}
        if path.is_file():
            # It would make weights up that lie in another part.
            if read_gguf_metadata(path, "split.").get("split.count", 1) > 1:
                raise OmniDraftError(
                    f"transformers reads no GGUF in parts, as {path} is. Leave engine=… out, or "
                    "join the parts with llama-gguf-split --merge."
                )
            options["gguf_file"] = path.name
        folder = path.parent if path.is_file() else path
        try:
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise cannot_load(path, error) from error
        self._model = model.to(self._device).eval()
        text = self._model.config.get_text_config()
        self._vocab_size = int(self._model.get_output_embeddings().weight.shape[0])
        self._max_length = int(getattr(text, "max_position_embeddings", 8192))
        # Without the configuration every layer keeps all tokens, so that any can be cut off again.
        self._new_cache = transformers.DynamicCache
        self._cache: Any = self._new_cache()
        names = inspect.signature(self._model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self._no_trees = _why_no_trees(self._model.config, text, names)
        self._tree: TokenTree | None = None
        self._length = 0

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

    def forward(
        self, tokens: Sequence[int] | NDArray[np.int64], rows: int | None = None
    ) -> NDArray[np.float32]:
        """Append ``tokens`` and return logits: see ``CausalModel.forward``.

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
        """See ``ScoresTrees``: where all layers see the whole text, and nodes can be masked."""
        return not self._no_trees

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
        if self._no_trees:
            raise OmniDraftError(f"This model scores no trees of tokens: {self._no_trees}.")
        ids, rows = check_pass(self, tokens, rows)
        tree = self._tree or TokenTree(self._length)
        paths = tree.paths(parents, len(ids))
        seen = np.zeros((len(ids), self._length + len(ids)), bool)
        seen[:, : tree.chain] = True
        for row, path in zip(seen, paths, strict=True):
            row[list(path)] = True
        depths = np.array([[tree.chain + len(path) - 1 for path in paths]])
        torch, dtype = self._torch, self._model.dtype
        mask = torch.zeros(seen.shape, dtype=dtype)
        mask.masked_fill_(torch.from_numpy(~seen), torch.finfo(dtype).min)
        logits = self._forward(
            ids,
            rows,
            attention_mask=mask[None, None].to(self._device),
            position_ids=torch.from_numpy(depths).to(self._device),
        )
        tree.grow(paths)
        self._tree = tree
        return logits

    def keep(self, path: Sequence[int]) -> None:
        """End the tree: see ``ScoresTrees.keep``."""
        tree = self._tree or TokenTree(self._length)
        moves = tree.moves(path)
        sources, targets = [source for source, _ in moves], [target for _, target in moves]
        with self._torch.inference_mode():
            for layer in self._cache.layers if moves else ():
                for cache in (layer.keys, layer.values):
                    cache[..., targets, :] = cache[..., sources, :]
        self._tree = None
        self.truncate(tree.chain + len(path))

    def _forward(self, ids: NDArray[np.int64], rows: int, **options: Any) -> NDArray[np.float32]:
        torch = self._torch
        with torch.inference_mode():
            result = self._model(
                input_ids=torch.from_numpy(ids[None]).to(self._device),
                use_cache=True,
                logits_to_keep=rows,
                **{self._cache_argument: self._cache},
                **options,
            )
        self._length += len(ids)
        logits: NDArray[np.float32] = result.logits[0, -rows:].float().cpu().numpy()
        return np.ascontiguousarray(logits)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the KV cache: see ``CausalModel.truncate``."""
        check_truncation(self, length)
        if self._tree is not None and length > self._tree.chain:
            raise self._tree.refuse(f"nothing is cut to {length} tokens")
        self._tree = None
        if length == 0:
            self._cache = self._new_cache()
        elif length < self._length:
            # Negative: how many tokens go. Newer versions accept nothing else.
            self._cache.crop(length - self._length)
        self._length = length


def _why_no_trees(config: Any, text: Any, arguments: Container[str]) -> str:
    """Why a model scores no trees of tokens; nothing if it does.

    Args:
        config: the model's; text: that of its decoder.
        arguments: of the model's ``forward``.
    """
    layers = set(getattr(text, "layer_types", None) or ())
    windows = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    if layers - {"full_attention"} or (windows and not layers):
        return "not all of its layers see the whole text"
    if "position_ids" not in arguments or getattr(text, "alibi", False):
        return "it counts positions itself"
    attention = getattr(config, "_attn_implementation", None)
    if attention not in ("sdpa", "eager"):
        return f"its attention ({attention}) takes no mask for each pair of tokens"
    return ""


@contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(
            f"This engine needs {error.name}: pip install 'omnidraft[transformers]'"
        ) from error


def _check() -> None:
    with _extra():
        import torch  # noqa: F401
        import transformers  # noqa: F401


ENGINE = EngineSpec(
    load=lambda path, threads, _: TransformersModel(path, threads=threads),
    opens=is_checkpoint,
    what="a GGUF file; a folder with config.json and *.safetensors or pytorch_model.bin",
    checkpoints=True,
    check=_check,
)
