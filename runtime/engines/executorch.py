"""Run an exported ``.pte`` with ExecuTorch's Python runtime, its KV cache in the program itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.engines.model import check_pass, check_truncation
from omnidraft.runtime.engines.registry import EngineSpec
from omnidraft.runtime.errors import DamagedFileError, MissingDependencyError
from omnidraft.runtime.quiet import quiet
from omnidraft.runtime.storage.bundle import Bundle
from omnidraft.runtime.storage.lora import LoraWeights, complete_adapter, sizes_beside_rank


class ExecuTorchModel:
    """A ``CausalModel`` over a bundle of the ``executorch`` backend.

    Args:
        folder: the bundle.
        threads: threads that work on one pass. ExecuTorch has one pool for the whole process: the
            last model that is loaded decides.

    Raises:
        MissingDependencyError: executorch is missing, or torch, which its Python runtime is linked
            with.
        ModelNotFoundError: the folder holds no bundle.
        DamagedFileError: a file differs from the manifest or is refused by ExecuTorch.
    """

    def __init__(self, folder: Path, *, threads: int = 2) -> None:
        self.bundle = Bundle.load(folder)
        graph = self.bundle.decoders[0]
        path = folder / graph.file
        try:
            # The bindings' own messages come by way of sys.stderr.
            with quiet(), redirect_stderr(StringIO()):
                self._torch, bindings = load_runtime(threads)
                # The program owns what the method works on.
                self._program = bindings._load_program(
                    str(path), program_verification=bindings.Verification.InternalConsistency
                )
                self._method = self._program.load_method(graph.method)
            meta = self._method.method_meta()
            sizes = [meta.input_tensor_meta(i).sizes() for i in range(meta.num_inputs())]
        except RuntimeError as error:
            raise DamagedFileError(
                f"{path} cannot be loaded: {error}. Was it exported for this processor?"
            ) from error
        if len(sizes) != len(graph.inputs):
            raise DamagedFileError(
                f"{path} takes {len(sizes)} inputs, its manifest names {len(graph.inputs)}. "
                "Export the bundle again."
            )
        # A dynamic dimension's size is its largest.
        self._width, self._max_length = map(int, sizes[2])
        self._lora_inputs = [
            (tensor.name, shape) for tensor, shape in zip(graph.inputs[3:], sizes[3:], strict=True)
        ]
        self._fixed = graph.tokens is not None
        self._length = 0
        self._lora: list[Any] = []
        self.set_adapter(None)

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""
        return self.bundle.geometry.vocab_size

    @property
    def length(self) -> int:
        """Number of tokens in the KV cache."""
        return self._length

    @property
    def max_length(self) -> int:
        """Longest sequence the model can hold, in tokens."""
        return self._max_length

    @property
    def adapter(self) -> LoraWeights | None:
        """See ``TakesAdapters``."""
        return self._adapter

    def set_adapter(self, adapter: LoraWeights | None) -> None:
        """Use a LoRA adapter from now on; the KV cache, which the old weights filled, is emptied.

        Args:
            adapter: see ``omnidraft.runtime.storage.lora``, of at most the bundle's rank; None: the
                base model.

        Raises:
            OmniDraftError: the adapter does not fit the model; the one in use stays.
        """
        sizes = sizes_beside_rank(dict(self._lora_inputs))
        largest = self.bundle.lora.rank if self.bundle.lora else 0
        # A dynamic rank is at least 1.
        smallest = largest if self._fixed else 1
        complete = complete_adapter(adapter, sizes, smallest=smallest, largest=largest)
        self._lora = [self._torch.from_numpy(complete[name]) for name, _ in self._lora_inputs]
        self._adapter = adapter
        self._length = 0

    def forward(
        self, tokens: Sequence[int] | NDArray[np.int64], rows: int | None = None
    ) -> NDArray[np.float32]:
        """Append ``tokens`` and return logits: see ``CausalModel.forward``.

        Raises:
            ContextOverflowError: ``length + n > max_length``; the cache is unchanged.
            ValueError: no tokens, a token outside the vocabulary, or ``rows`` outside 1…n.
        """
        ids, rows = check_pass(self, tokens, rows)
        parts = []
        for start in range(0, len(ids), self._width):
            part = ids[start : start + self._width]
            logits = self._pass(part, self._length + start)
            parts.append(logits[max(0, len(ids) - rows - start) :])
        self._length += len(ids)
        parts = [part for part in parts if len(part)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the KV cache: see ``CausalModel.truncate``."""
        check_truncation(self, length)
        # Rows from here on are never read before they are written again.
        self._length = length

    def _pass(self, tokens: NDArray[np.int64], past: int) -> NDArray[np.float32]:
        count = len(tokens)
        # A fixed graph's further rows write behind the last position, where nobody reads.
        extra = self._width - count if self._fixed else 0
        ids = np.pad(tokens, (0, extra))[None]
        positions = np.arange(past, past + count)
        positions = np.pad(positions, (0, extra), constant_values=self._max_length)
        length = self._max_length if self._fixed else past + count
        later = np.arange(length) > positions[:, None]
        mask = np.where(later, np.float32("-inf"), np.float32(0))
        inputs = map(self._torch.from_numpy, (ids, positions, mask))
        outputs = self._method([*inputs, *self._lora])
        logits: NDArray[np.float32] = outputs[0].numpy()[0, :count]
        return logits


def load_runtime(threads: int) -> tuple[Any, Any]:
    """torch and ExecuTorch's bindings, with the kernels that quantized embeddings need.

    The bindings' private module: the public ones around it, executorch.runtime among them, import
    ExecuTorch's compiler too, for the class of a warning. That takes longer than all else here.
    """
    try:
        import executorch.kernels.quantized  # noqa: F401  (registers kernels)
        import torch  # before the bindings, which are linked with it
        from executorch.extension.pybindings import _C as bindings  # noqa: N811
    except ImportError as error:
        raise MissingDependencyError(
            f"ExecuTorch's Python runtime is not installed ({error.name or error} is missing): "
            "pip install 'omnidraft[executorch]'."
        ) from error
    if bindings._threadpool_get_thread_count() != threads:
        bindings._unsafe_reset_threadpool(threads)
    return torch, bindings


ENGINE = EngineSpec(load=lambda path, threads, _: ExecuTorchModel(path, threads=threads))
