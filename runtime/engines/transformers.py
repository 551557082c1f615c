"""Run a checkpoint with PyTorch and transformers, an optional extra, on the CPU or a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.engines.failures import cannot_load
from omnidraft.runtime.engines.model import check_pass, check_truncation
from omnidraft.runtime.engines.registry import EngineSpec
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
                    f"transformers reads no GGUF in parts, as {path} is. Leave --engine out, or "
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
        ids, rows = check_pass(self, tokens, rows)
        count = len(ids)
        torch = self._torch
        with torch.inference_mode():
            result = self._model(
                input_ids=torch.from_numpy(ids[None]).to(self._device),
                use_cache=True,
                logits_to_keep=rows,
                **{self._cache_argument: self._cache},
            )
        self._length += count
        logits: NDArray[np.float32] = result.logits[0, -rows:].float().cpu().numpy()
        return np.ascontiguousarray(logits)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the KV cache: see ``CausalModel.truncate``."""
        check_truncation(self, length)
        if length == 0:
            self._cache = self._new_cache()
        elif length < self._length:
            # Negative: how many tokens go. Newer versions accept nothing else.
            self._cache.crop(length - self._length)
        self._length = length


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
