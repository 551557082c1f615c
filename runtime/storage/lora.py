"""LoRA adapters of exported drafters: ONNX Runtime's ``.onnx_adapter`` files.

An adapter maps the names of a bundle's LoRA inputs to float32 arrays: see ``bundle.Lora``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.storage.files import whole_file

LoraWeights = Mapping[str, NDArray[np.float32]]
"""By the names of a bundle's LoRA inputs."""


def write_adapter(path: Path, adapter: LoraWeights) -> None:
    """Write an adapter, replacing a file that is there.

    Raises:
        OmniDraftError: the file cannot be written.
    """
    adapter_format = ort.AdapterFormat()
    adapter_format.set_adapter_version(1)
    adapter_format.set_model_version(1)
    adapter_format.set_parameters(
        {
            name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(values, np.float32))
            for name, values in adapter.items()
        }
    )
    with whole_file(path) as file:
        try:
            adapter_format.export_adapter(str(file))
        except RuntimeError as error:
            raise OmniDraftError(f"{path} cannot be written; its disk may be full.") from error


def read_adapter(path: Path) -> dict[str, NDArray[np.float32]]:
    """Read an adapter.

    Raises:
        ModelNotFoundError: there is no such file.
        DamagedFileError: it is no adapter.
    """
    if not path.is_file():
        raise ModelNotFoundError(f"There is no adapter {path}.")
    try:
        adapter_format = ort.AdapterFormat.read_adapter(str(path))
        values = adapter_format.get_parameters()
        # Copies: the values point into memory that goes with ``adapter_format``.
        return {name: np.array(value.numpy(), np.float32) for name, value in values.items()}
    except Exception as error:  # ONNX Runtime's errors share no narrower base class
        raise DamagedFileError(f"{path} is no adapter that can be read: {error}") from error


def sizes_beside_rank(shapes: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """For every LoRA input among a model's inputs the size that is not the rank.

    Args:
        shapes: by name; of A [in, rank], of B [rank, out]. Other inputs are left out.
    """
    return {
        name: int(shape[0 if name.endswith(".A") else 1])
        for name, shape in shapes.items()
        if name.startswith("lora.")
    }


def check_adapter(adapter: Mapping[str, NDArray[Any]], sizes: Mapping[str, int]) -> None:
    """Refuse an adapter that does not fit a model.

    Args:
        adapter: may leave out linears, which then stay as they are.
        sizes: see ``sizes_beside_rank``.

    Raises:
        OmniDraftError: a name is unknown, an A or B lacks its other half, or a shape or dtype is
            wrong.
    """
    if unknown := sorted(set(adapter) - set(sizes)):
        raise OmniDraftError(
            f"The adapter does not fit this drafter, which has no input {unknown[0]}. "
            "Use an adapter that was made for it."
            if sizes
            else "This drafter has no LoRA inputs. Export it again with --lora-rank from 1."
        )
    for name, values in adapter.items():
        stem, _, part = name.rpartition(".")
        other = adapter.get(f"{stem}.{'B' if part == 'A' else 'A'}")
        if other is None:
            raise OmniDraftError(f"The adapter has {name} without its other half.")
        rank = other.shape[0 if part == "A" else -1] if other.ndim == 2 else 0
        expected = (sizes[name], rank) if part == "A" else (rank, sizes[name])
        if values.dtype != np.float32 or values.shape != expected:
            raise OmniDraftError(
                f"The adapter does not fit this drafter: {name} is {values.dtype} "
                f"{list(values.shape)}, float32 {list(expected)} expected."
            )


def complete_adapter(
    adapter: LoraWeights | None,
    sizes: Mapping[str, int],
    *,
    smallest: int = 0,
    largest: int | None = None,
) -> dict[str, NDArray[np.float32]]:
    """A value for every LoRA input of a model: an adapter's, and zeros, which add nothing.

    Args:
        adapter: None: zeros alone, the base model.
        sizes: see ``sizes_beside_rank``.
        smallest: the smallest rank that the model's graphs take; lower ones get further zeros.
        largest: the largest; None: any.

    Raises:
        OmniDraftError: see ``check_adapter``; or a rank is too large.
    """
    adapter = adapter or {}
    check_adapter(adapter, sizes)
    complete = {}
    for name, size in sizes.items():
        axis = 1 if name.endswith(".A") else 0
        empty = np.zeros((size, 0) if axis else (0, size), np.float32)
        values = adapter.get(name, empty)
        rank = values.shape[axis]
        if largest is not None and rank > largest:
            raise OmniDraftError(
                f"The adapter has rank {rank}, this drafter takes at most {largest}. "
                f"Export it again with --lora-rank {rank}."
            )
        missing = [(0, 0), (0, 0)]
        missing[axis] = (0, max(0, smallest - rank))
        complete[name] = np.ascontiguousarray(np.pad(values, missing))
    return complete
