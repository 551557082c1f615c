"""Losses of a drafter and the gradients of its LoRA, computed by ONNX Runtime alone."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from omnidraft.runtime.engines.onnx_session import cpu_session
from omnidraft.runtime.errors import ModelNotFoundError, OmniDraftError
from omnidraft.runtime.storage.lora import LoraWeights, check_adapter, sizes_beside_rank

TRAINING_FILE = "training.onnx"
MASKED = -1e30


@dataclass(frozen=True)
class TrainingBatch:
    """Tokens, and what is to be learnt at some of their positions.

    T positions, R rows, M tokens for a row, C chunks. What is left out weighs nothing. Several
    sequences, or branches beside one, go into one batch when ``mask`` hides them from each other.

    Attributes:
        tokens: int64 [T] draft tokens.
        rows: int64 [R] indices of positions whose next-token distributions q carry loss; one may
            occur several times.
        positions: int64 [T] places in the sequence; default: 0 … T − 1.
        mask: float32 [T, T], added to the attention's scores: 0 where row t may see column s,
            a large negative number elsewhere; every position sees itself. Default: causal.
        direct_ids: int64 [R, M] draft tokens, distinct in a row, −1 fills a row up.
        direct_log_p: float32 [R, M] finite: the target's log-probabilities of what these tokens
            stand for; what the row lacks to 1 is one further outcome.
        direct_weight: float32 [R] weight of D(q' ‖ p) over ``direct_ids`` and the rest.
        direct_tokens: float32 [vocab], 1 for the draft tokens over which q is renormalised to q',
            0 for others. Default: all.
        label: int64 [R] a sub-token of an n-gram, or of a chunk.
        label_weight: float32 [R] weight of −log q(label): λ, or λ p(t) for the point-wise KL.
        chunks: float32 [C, R], 1 where a row's label belongs to a chunk, which then has the
            likelihood s = Π q(label).
        chunk_log_p: float32 [C] finite: the target's log-likelihood of each chunk.
        chunk_weight: float32 [C] weight of ALM's binarised divergence.
        merged: float32 [C, R], 1 where a chunk, an n-gram, is one more outcome of a row's
            distribution q': that of its first sub-token, the row's label, which loses as much
            (OmniDraft's Eq. 2). ``direct_log_p`` of the label is then the token's own.
        temperature: ALM's τ.
    """

    tokens: NDArray[np.int64]
    rows: NDArray[np.int64]
    positions: NDArray[np.int64] | None = None
    mask: NDArray[np.float32] | None = None
    direct_ids: NDArray[np.int64] | None = None
    direct_log_p: NDArray[np.float32] | None = None
    direct_weight: NDArray[np.float32] | None = None
    direct_tokens: NDArray[np.float32] | None = None
    label: NDArray[np.int64] | None = None
    label_weight: NDArray[np.float32] | None = None
    chunks: NDArray[np.float32] | None = None
    chunk_log_p: NDArray[np.float32] | None = None
    chunk_weight: NDArray[np.float32] | None = None
    merged: NDArray[np.float32] | None = None
    temperature: float = 100.0

    def inputs(self, vocab_size: int) -> dict[str, NDArray[Any]]:
        """The graph's inputs.

        Raises:
            ValueError: an id lies outside the vocabulary, or a row outside the tokens.
        """
        count, rows = len(self.tokens), len(self.rows)
        chunks = 0 if self.chunks is None else len(self.chunks)
        ids = 0 if self.direct_ids is None else self.direct_ids.shape[1]

        def given(value: Any, dtype: type, *shape: int, default: float = 0) -> NDArray[Any]:
            if value is None:
                return np.full(shape, default, dtype)
            return np.ascontiguousarray(value, dtype).reshape(shape)

        mask = self.mask
        if mask is None:
            mask = np.triu(np.full((count, count), MASKED, np.float32), 1)
        positions = np.arange(count) if self.positions is None else self.positions
        inputs = {
            "tokens": given(self.tokens, np.int64, 1, count),
            "positions": given(positions, np.int64, 1, count),
            "mask": given(mask, np.float32, count, count),
            "rows": given(self.rows, np.int64, rows),
            "direct_ids": given(self.direct_ids, np.int64, rows, ids),
            "direct_log_p": given(self.direct_log_p, np.float32, rows, ids),
            "direct_weight": given(self.direct_weight, np.float32, rows),
            "direct_tokens": given(self.direct_tokens, np.float32, vocab_size, default=1),
            "label": given(self.label, np.int64, rows),
            "label_weight": given(self.label_weight, np.float32, rows),
            "chunks": given(self.chunks, np.float32, chunks, rows),
            "chunk_log_p": given(self.chunk_log_p, np.float32, chunks),
            "chunk_weight": given(self.chunk_weight, np.float32, chunks),
            "merged": given(self.merged, np.float32, chunks, rows),
            "temperature": np.array(self.temperature, np.float32),
        }
        for name, least, bound in (
            ("tokens", 0, vocab_size),
            ("label", 0, vocab_size),
            ("direct_ids", -1, vocab_size),
            ("rows", 0, count),
        ):
            values = inputs[name]
            if values.size and not least <= values.min() <= values.max() < bound:
                raise ValueError(f"{name} must lie in {least}…{bound - 1}")
        return inputs


@dataclass(frozen=True)
class TrainingResult:
    """What a step computed.

    Attributes:
        loss: the sum of the three below.
        direct_loss, label_loss, chunk_loss: weighted sums, in nats.
        kl: float32 [R] D(q' ‖ p) of each row, in nats.
        log_label: float32 [R] log q(label).
        chunk_divergence: float32 [C] ALM's divergence of each chunk.
        hidden: float32 [R, hidden_size] the rows' hidden states, as the head reads them.
        best: int64 [R] the drafter's likeliest token of each row.
        gradients: of ``loss``, for each LoRA factor, float32 of its shape.
    """

    loss: float
    direct_loss: float
    label_loss: float
    chunk_loss: float
    kl: NDArray[np.float32]
    log_label: NDArray[np.float32]
    chunk_divergence: NDArray[np.float32]
    hidden: NDArray[np.float32]
    best: NDArray[np.int64]
    gradients: dict[str, NDArray[np.float32]]


class TrainingStep:
    """The graph that ``omnidraft.export.graphs.training.write_training_graph`` wrote.

    Losses are sums over rows and chunks: gradients of several batches may be added up.

    Args:
        path: ``training.onnx``, or the folder that holds it.
        threads: threads that work on a step.

    Raises:
        ModelNotFoundError: there is no such file.
        DamagedFileError, OmniDraftError: see ``cpu_session``; or an older version wrote it.
    """

    def __init__(self, path: Path, threads: int = 2) -> None:
        path = path / TRAINING_FILE if path.is_dir() else path
        if not path.is_file():
            raise ModelNotFoundError(
                f"There is no training step {path}. Export the drafter with --train-step."
            )
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # A plan of the memory is kept for each shape that was seen, and shapes differ from batch to
        # batch: twice the memory.
        options.enable_mem_pattern = False
        # Weights are read in both directions; packed for each they would be there three times.
        options.add_session_config_entry("session.disable_prepacking", "1")
        # Otherwise int8 weights are expanded in every step, not once.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # Learning happens beside other work.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = cpu_session(path, options)
        shapes = {value.name: value.shape for value in self._session.get_inputs()}
        self.vocab_size: int = shapes["direct_tokens"][0]
        self.lora_sizes = sizes_beside_rank(shapes)
        """For each LoRA factor the size that is not the rank: of A [in, rank], of B [rank, out]."""
        self._outputs = [value.name for value in self._session.get_outputs()]
        wanted = {f.name for f in fields(TrainingResult)} - {"gradients"}
        if missing := sorted(wanted.difference(self._outputs)):
            raise OmniDraftError(
                f"{path} has no output {missing[0]!r}: an older omnidraft wrote it. Export the "
                "drafter again; where it lies in omnidraft's own cache, delete its folder."
            )

    def run(
        self, batch: TrainingBatch, lora: LoraWeights, options: ort.RunOptions | None = None
    ) -> TrainingResult:
        """Compute losses and gradients.

        Args:
            lora: every factor of ``lora_sizes``, of any rank.
            options: setting its ``terminate`` from another thread ends the step with an exception.

        Raises:
            ValueError: the batch contradicts itself or the vocabulary.
            OmniDraftError: the LoRA does not fit the drafter.
        """
        values = self._run(batch, lora, self._outputs, options)
        return TrainingResult(
            loss=float(values["loss"]),
            direct_loss=float(values["direct_loss"]),
            label_loss=float(values["label_loss"]),
            chunk_loss=float(values["chunk_loss"]),
            kl=values["kl"],
            log_label=values["log_label"],
            chunk_divergence=values["chunk_divergence"],
            hidden=values["hidden"],
            best=values["best"],
            gradients={name: values[f"grad.{name}"] for name in self.lora_sizes},
        )

    def best(
        self, batch: TrainingBatch, lora: LoraWeights, options: ort.RunOptions | None = None
    ) -> NDArray[np.int64]:
        """The drafter's likeliest token of each row, int64 [R], and nothing else.

        Raises:
            See ``run``.
        """
        options = options or ort.RunOptions()
        options.only_execute_path_to_fetches = True
        best: NDArray[np.int64] = self._run(batch, lora, ["best"], options)["best"]
        return best

    def _run(
        self,
        batch: TrainingBatch,
        lora: LoraWeights,
        outputs: list[str],
        options: ort.RunOptions | None,
    ) -> dict[str, Any]:
        check_adapter(lora, self.lora_sizes)
        if missing := sorted(self.lora_sizes.keys() - lora.keys()):
            raise OmniDraftError(f"The adapter lacks {missing[0]}; learning needs all factors.")
        inputs = batch.inputs(self.vocab_size) | dict(lora)
        return dict(zip(outputs, self._session.run(outputs, inputs, options), strict=True))
