"""Run a drafter that was compiled for a Qualcomm NPU, by ONNX Runtime's QNN execution provider.

On an x86 machine the same compiled graph runs in the NPU's emulation: its numbers, not its speed.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from omnidraft.runtime.engines.model import check_pass, check_truncation
from omnidraft.runtime.engines.registry import EngineSpec
from omnidraft.runtime.errors import DamagedFileError, MissingDependencyError, OmniDraftError
from omnidraft.runtime.quiet import quiet
from omnidraft.runtime.storage.bundle import Bundle, Soc
from omnidraft.runtime.storage.lora import LoraWeights, complete_adapter, sizes_beside_rank

PROVIDER = "QNNExecutionProvider"
# Added to scores of columns that a row must not see. exp(-100) is nothing, and 16 bits still
# resolve the scores beside it; the usual -1e30 would leave them no digits.
MASKED = -100.0
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,  # the mask of older bundles
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
}


class StaticDecoder:
    """A ``CausalModel`` over graphs for passes of fixed sizes that leave the KV cache to the host.

    See ``StaticGraph`` in export/graphs/static.py for the graphs' inputs; keys, values and mask may
    be float32 or integers, which are passed on as they are.

    Args:
        sessions: by the number of tokens that each takes.
        emulated: whether the sessions emulate a chip.
    """

    _lora: dict[str, NDArray[np.float32]]

    def __init__(
        self, sessions: Mapping[int, ort.InferenceSession], *, emulated: bool = False
    ) -> None:
        self._sessions = dict(sorted(sessions.items()))
        self.emulated = emulated
        self._length = 0
        inputs = {value.name: value for value in next(iter(self._sessions.values())).get_inputs()}
        outputs = {o.name: o.shape for o in next(iter(self._sessions.values())).get_outputs()}
        self._vocab_size = int(outputs["logits"][-1])
        self._hidden_size = int(outputs["hidden"][-1]) if "hidden" in outputs else 0
        self._hidden = np.zeros(self._hidden_size, np.float32)
        self._past: dict[str, NDArray[Any]] = {
            name: np.zeros(value.shape, _DTYPES[value.type])
            for name, value in inputs.items()
            if name.startswith("past.")
        }
        self._max_length = int(self._past["past.0.key"].shape[-1])
        # What is added to scores of columns that a row must not see, and of those it may.
        # Integers lie between the two evenly: see export/graphs/qdq.py.
        mask: Any = _DTYPES[inputs["mask"].type]
        bounds = [MASKED, 0] if mask is np.float32 else [0, np.iinfo(mask).max]
        self._mask: NDArray[Any] = np.array(bounds, mask)
        self.lora_shapes: dict[str, tuple[int, int]] = {
            name: (value.shape[0], value.shape[1])
            for name, value in inputs.items()
            if name.startswith("lora.")
        }
        self._passes: dict[int, _BoundPass] = {}
        self.set_adapter(None)

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
        parts = []
        while len(ids):
            # The shortest graph that takes what is left, else the longest.
            size = next((size for size in self._sessions if size >= len(ids)), max(self._sessions))
            part, ids = ids[:size], ids[size:]
            outputs = self.run(part, size)
            parts.append(outputs["logits"][0, : len(part)].copy())
            if self._hidden_size:
                self._hidden = outputs["hidden"][0, len(part) - 1]
        return np.ascontiguousarray(np.concatenate(parts)[-rows:], np.float32)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the KV cache: see ``CausalModel.truncate``."""
        check_truncation(self, length)
        self._length = length

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states; 0 where the graphs do not give them: see ``HiddenStates``."""
        return self._hidden_size

    def last_hidden(self) -> NDArray[np.float32]:
        """float32 [hidden_size] of the last token of the last ``forward``: see ``HiddenStates``.

        A view of a buffer that the next ``forward`` overwrites.
        """
        return self._hidden

    @property
    def adapter(self) -> LoraWeights | None:
        """See ``TakesAdapters``."""
        return self._adapter

    def set_adapter(self, adapter: LoraWeights | None) -> None:
        """Use a LoRA adapter from now on; the KV cache, which the old weights filled, is emptied.

        Args:
            adapter: see ``storage.lora``, of at most the graphs' rank; None: zeros.

        Raises:
            OmniDraftError: the adapter does not fit the model; the one in use stays.
        """
        sizes = sizes_beside_rank(self.lora_shapes)
        # Compiled for one rank.
        rank = next((shape[1] for n, shape in self.lora_shapes.items() if n.endswith(".A")), 0)
        self._lora = complete_adapter(adapter, sizes, smallest=rank, largest=rank)
        for bound in self._passes.values():
            bound.bind(self._lora)
        self._adapter = adapter
        self._length = 0

    def run(self, ids: NDArray[np.int64], size: int) -> dict[str, NDArray[Any]]:
        """Append ``ids`` by the graph for ``size`` tokens and return all its outputs.

        They have ``size`` rows, those after ``len(ids)`` are of no use. The next pass of that size
        may overwrite them.
        """
        count, context = len(ids), self._max_length
        if size not in self._passes:
            self._passes[size] = self._bind(size)
        bound = self._passes[size]
        visible = np.zeros((size, context + size), np.intp)
        visible[:, : self._length] = 1
        visible[:, context:] = np.tri(size)
        bound.mask[0, 0] = self._mask[visible]
        bound.tokens[0, :count] = ids
        bound.tokens[0, count:] = 0
        bound.positions[0] = np.minimum(self._length + np.arange(size), context - 1)
        outputs = bound.run()
        end = self._length + count
        for name, past in self._past.items():
            new = outputs[name.replace("past", "present")]
            if name.endswith(".key"):
                past[..., self._length : end] = new[..., :count]
            else:
                past[:, :, self._length : end] = new[:, :, :count]
        self._length = end
        return outputs

    def _bind(self, size: int) -> _BoundPass:
        context = self._max_length
        bound = _BoundPass(
            self._sessions[size],
            tokens=np.zeros((1, size), np.int32),
            positions=np.zeros((1, size), np.int32),
            mask=np.zeros((1, 1, size, context + size), self._mask.dtype),
        )
        bound.bind({**self._past, **self._lora})
        return bound


class _BoundPass:
    """A session whose inputs stay where they are, so that nothing of the cache is handed over.

    Args:
        tokens, positions, mask: the inputs that change with every pass, to be written into.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        *,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        mask: NDArray[Any],
    ) -> None:
        self._session = session
        self._binding = session.io_binding()
        self.tokens, self.positions, self.mask = tokens, positions, mask
        # Bound values share the arrays' memory; the references keep it alive.
        self._values: dict[str, tuple[NDArray[Any], ort.OrtValue]] = {}
        self.bind({"tokens": tokens, "positions": positions, "mask": mask})
        self._outputs = [output.name for output in session.get_outputs()]
        for name in self._outputs:
            self._binding.bind_output(name)

    def bind(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Use these arrays from now on, as they are at each pass."""
        for name, array in arrays.items():
            value = ort.OrtValue.ortvalue_from_numpy(array)
            self._values[name] = array, value
            self._binding.bind_ortvalue_input(name, value)

    def run(self) -> dict[str, NDArray[Any]]:
        """All outputs, by name; the next pass may overwrite them."""
        self._session.run_with_iobinding(self._binding)
        outputs = self._binding.get_outputs()
        return {name: value.numpy() for name, value in zip(self._outputs, outputs, strict=True)}


class QnnModel(StaticDecoder):
    """A ``CausalModel`` over a bundle of the qnn backend.

    ``emulated`` says whether its NPU is emulated, as it is on x86.

    Args:
        folder: the bundle.
        threads: of no effect: the NPU has its own.

    Raises:
        MissingDependencyError: the package onnxruntime-qnn is missing, or has no device here.
        ModelNotFoundError, DamagedFileError: see ``Bundle.load``.
        OmniDraftError: the compiled graphs cannot be loaded on this machine.
    """

    def __init__(self, folder: Path, *, threads: int = 2) -> None:
        bundle = Bundle.load(folder)
        if bundle.backend != "qnn":
            raise DamagedFileError(f"{folder} is a bundle for {bundle.backend}, not for qnn.")
        shared = bundle.soc is not None and bundle.soc.shared_weights
        if shared and is_emulator():
            raise OmniDraftError(
                f"The graphs of {folder} share their weights, which the chip can load and its "
                "emulation here cannot. Export the drafter again without --share-weights to run it "
                "here."
            )
        sessions = {}
        for graph in bundle.decoders:
            assert graph.tokens is not None
            # A device knows its own chip; the emulation has to be told.
            options = npu_options(bundle.soc if is_emulator() else None)
            options.intra_op_num_threads = threads
            if shared:
                share_contexts(options, last=graph is bundle.decoders[-1])
            try:
                sessions[graph.tokens] = npu_session(folder / graph.file, options)
            except Exception as error:  # ONNX Runtime's errors share no narrower base class.
                chip = bundle.soc.name if bundle.soc else "another chip"
                raise OmniDraftError(
                    f"{folder / graph.file} cannot be loaded: {error} It was compiled for {chip}; "
                    "export the drafter again with --soc for this machine's chip."
                ) from error
        super().__init__(sessions, emulated=is_emulator())


def is_emulator() -> bool:
    """Whether the QNN execution provider emulates the NPU here: no x86 chip has one."""
    return platform.machine().lower() in ("x86_64", "amd64")


def npu_options(soc: Soc | None) -> ort.SessionOptions:
    """Session options that run a graph on the NPU, or in its emulation, and nowhere else.

    Args:
        soc: the chip to compile for or to emulate; None: this device's.

    Raises:
        MissingDependencyError: the package onnxruntime-qnn is missing, or has no device here.
    """
    try:
        import onnxruntime_qnn  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingDependencyError(
            "Drafters for Qualcomm's NPUs need the package onnxruntime-qnn: "
            "pip install onnxruntime-qnn"
        ) from error
    if all(device.ep_name != PROVIDER for device in ort.get_ep_devices()):
        ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    if not devices:
        raise MissingDependencyError(
            "onnxruntime-qnn finds no NPU on this machine and no emulation of one."
        )
    # An NPU where there is one, before what stands for it.
    devices.sort(key=lambda device: device.device.type != ort.OrtHardwareDeviceType.NPU)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    # Quantized inputs and outputs stay on the NPU, or the CPU would have nodes after all.
    settings = {
        "backend_type": "htp",
        "htp_graph_finalization_optimization_mode": "3",
        "offload_graph_io_quantization": "0",
        # A draft step is waited for, and is over in milliseconds. The emulation has no modes.
        "htp_performance_mode": "burst",
    }
    if soc:
        settings["soc_model"] = str(soc.model_id)
    options.add_provider_for_devices(devices[:1], settings)
    return options


def share_contexts(options: ort.SessionOptions, *, last: bool) -> None:
    """Make sessions that are created one after another use, or make, one context."""
    options.add_session_config_entry("ep.share_ep_contexts", "1")
    if last:
        options.add_session_config_entry("ep.stop_share_ep_contexts", "1")


def npu_session(graph: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    """Load a graph with ``npu_options``.

    Qualcomm's libraries write to the standard output then, which may be meant for JSON.
    """
    with quiet():
        return ort.InferenceSession(str(graph), options)


ENGINE = EngineSpec(load=lambda path, threads, _: QnnModel(path, threads=threads))
