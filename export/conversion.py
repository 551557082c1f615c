"""Convert a checkpoint to a batch-invariant ONNX decoder, without torch and in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from omnidraft.export.checkpoint import Checkpoint, open_checkpoint
from omnidraft.export.graphs.block_decoder import matrices
from omnidraft.export.graphs.calibrate import CALIBRATION_TEXT, channel_factors, mean_squares
from omnidraft.export.graphs.drafter import exact_four_bits, write_drafter_graph
from omnidraft.export.graphs.four_bits import write_four_bit_graph
from omnidraft.export.graphs.stored import holds_weights_to_take, write_stored_graph
from omnidraft.export.graphs.target import max_threads, write_graph
from omnidraft.export.graphs.writer import Progress
from omnidraft.export.loss import LARGEST_LOSS, divergence
from omnidraft.runtime.cores import default_threads
from omnidraft.runtime.engines.invariance import measure_invariance
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.models.catalogue import Quantization
from omnidraft.runtime.models.progress import Progress as Report
from omnidraft.runtime.models.progress import by_stage
from omnidraft.runtime.storage.checkpoints import source_sha256
from omnidraft.runtime.storage.folders import whole_folder
from omnidraft.runtime.storage.manifest import Manifest, describe_files
from omnidraft.runtime.text.tokenizer import Tokenizer, tokenizer_files

# Of the time that a conversion takes, by stage, in their order: measured on SmolLM2-135M with two
# threads. All but a little of it grows with the number of weights, for any model.
_SHARES: Final[Mapping[str, Mapping[str, float]]] = {
    "8bit": {"calibration": 0.22, "layers": 0.14, "checksum": 0.02, "invariance": 0.62},
    "4bit": {"calibration": 0.2, "layers": 0.3, "checksum": 0.03, "invariance": 0.52},
    "float32": {"layers": 0.1, "checksum": 0.04, "invariance": 0.86},
}
_CHOICE_SHARES: Final = {"calibration": 0.25, "layers": 0.2, "checksum": 0.02, "invariance": 0.53}
_STORED_SHARES: Final = {"layers": 0.3, "checksum": 0.03, "invariance": 0.67}
_DRAFTERS_SHARES: Final = {"layers": 0.9, "checksum": 0.1}

__all__ = [
    "CALIBRATION_TEXT",
    "Progress",
    "Quantization",
    "convert",
    "convert_drafter",
]


def convert(
    source: Path,
    output: Path,
    quantization: Quantization = "4bit",
    *,
    calibration: Sequence[int] = (),
    progress: Progress = lambda stage, done, total: None,
    extra_files: Mapping[str, bytes] | None = None,
    extra_manifest: Mapping[str, Any] | None = None,
) -> Manifest:
    """Write the folder ``output`` that ``OnnxModel`` loads.

    The folder appears whole or not at all: it is written beside ``output`` under a temporary name,
    which is removed on any failure, a KeyboardInterrupt included.

    Args:
        source: a GGUF file, or a folder with config.json and safetensors.
        output: folder to create; one that is there already is replaced.
        quantization: ``4bit`` weights in blocks of 32, ``8bit`` weights, or ``float32``; ``auto``:
            those of a quantized GGUF as they are (see ``stored.py``); of any other checkpoint
            ``4bit`` if these lose at most ``LARGEST_LOSS`` on the calibration text, else ``8bit``.
        calibration: token ids of a text, say ``CALIBRATION_TEXT``, by which the input channels of
            8-bit linears are evened out (see ``calibrate.py``) and weights are rounded to 4 bits;
            none: this is left out, which costs accuracy, and ``auto`` takes ``8bit``.
        progress: called with a stage (``calibration``, ``layers``, ``checksum``, ``invariance``),
            steps done, steps in all.
        extra_files: further files to write into the folder, say the tokenizer, by name.
        extra_manifest: stored in the manifest as ``extra``.

    Raises:
        ModelNotFoundError, DamagedFileError: see ``open_checkpoint``.
        OmniDraftError: the architecture is not supported, or the disk is full.
    """
    checkpoint = open_checkpoint(source)
    with whole_folder(output) as temporary:
        loss: float | None = None
        if quantization != "auto":
            weights = _write(checkpoint, temporary, quantization, calibration, progress)
        elif holds_weights_to_take(checkpoint):
            weights = write_stored_graph(checkpoint, temporary, progress)
        elif calibration:
            weights, loss = _choose(checkpoint, temporary, calibration, progress)
        else:
            weights = _write(checkpoint, temporary, "8bit", calibration, progress)
        _describe(
            checkpoint,
            temporary,
            quantization,
            weights,
            source,
            progress,
            extra_files,
            extra_manifest,
            loss,
        )
        manifest = measure_invariance(
            temporary, OnnxModel(temporary, threads=default_threads()), progress
        )
        manifest.save(temporary)
    return manifest


def _write(
    checkpoint: Checkpoint,
    folder: Path,
    quantization: Literal["4bit", "8bit", "float32"],
    calibration: Sequence[int],
    progress: Progress,
) -> Mapping[str, int]:
    """Write a target's graph with weights that are quantized here; return how many in which way."""

    def calibrating(_: str, done: int, total: int) -> None:
        progress("calibration", done, total)

    if quantization == "4bit":
        importance: Mapping[str, Any] = {}
        if calibration:
            importance = mean_squares(checkpoint, folder, calibration, "values", calibrating)
        return write_four_bit_graph(checkpoint, folder, progress, importance)
    factors: Mapping[str, Any] = {}
    if quantization == "8bit" and calibration:
        factors = channel_factors(checkpoint, folder, calibration, calibrating)
    write_graph(checkpoint, folder, quantization, progress, factors)
    return {quantization: len(matrices(checkpoint.decoder))}


def _choose(
    checkpoint: Checkpoint, folder: Path, calibration: Sequence[int], progress: Progress
) -> tuple[Mapping[str, int], float]:
    """Write a target in 4 bits if these lose little, else in 8; return what ``_write`` does.

    A pass reads fewer bytes of 4 bits, so they are the faster ones on any machine where memory is
    what a pass waits for. The choice depends on the loss alone, which is the same on all machines
    but for what float32 rounds.
    """
    with TemporaryDirectory(prefix="choice-", dir=folder) as scratch:
        weights: dict[str, Mapping[str, int]] = {}
        options: tuple[Literal["8bit", "4bit"], ...] = ("8bit", "4bit")
        for i, bits in enumerate(options):

            def halfway(stage: str, done: int, total: int, before: int = i) -> None:
                progress(stage, before * total + done, 2 * total)

            (place := Path(scratch) / bits).mkdir()
            weights[bits] = _write(checkpoint, place, bits, calibration, halfway)
        text = calibration[: checkpoint.decoder.context_length]
        loss = divergence(Path(scratch) / "8bit", Path(scratch) / "4bit", text)
        chosen = "4bit" if loss <= LARGEST_LOSS else "8bit"
        for file in (Path(scratch) / chosen).iterdir():
            file.rename(folder / file.name)
    return weights[chosen], loss


def convert_drafter(
    source: Path,
    output: Path,
    *,
    progress: Progress = lambda stage, done, total: None,
    extra_files: Mapping[str, bytes] | None = None,
    extra_manifest: Mapping[str, Any] | None = None,
) -> Manifest:
    """Like ``convert`` for a Llama that is to draft: faster, and not batch-invariant.

    Matrices that 4 bits hold without loss get 4 bits, the others 8; the head computes what the
    checkpoint says is ever drafted: see ``drafter.py``.
    """
    checkpoint = open_checkpoint(source)
    with whole_folder(output) as temporary:
        four = exact_four_bits(checkpoint)
        write_drafter_graph(checkpoint, temporary, "8bit", progress, four=four, own=True)
        return _describe(
            checkpoint,
            temporary,
            "4bit" if four else "8bit",
            {},
            source,
            progress,
            extra_files,
            extra_manifest,
        )


def _describe(
    checkpoint: Checkpoint,
    folder: Path,
    quantization: Quantization,
    weights: Mapping[str, int],
    source: Path,
    progress: Progress,
    extra_files: Mapping[str, bytes] | None,
    extra_manifest: Mapping[str, Any] | None,
    loss: float | None = None,
) -> Manifest:
    """Add the further files, and a manifest of them all."""
    for name, content in (extra_files or {}).items():
        (folder / name).write_bytes(content)
    progress("checksum", 0, 1)
    d = checkpoint.decoder
    manifest = Manifest(
        architecture=d.architecture,
        quantization=quantization,
        layers=d.layers,
        hidden_size=d.hidden_size,
        heads=d.heads,
        kv_heads=d.kv_heads,
        head_size=d.head_size,
        vocab_size=d.vocab_size,
        context_length=d.context_length,
        max_threads=max_threads(d, quantization),
        source_sha256=source_sha256(source),
        invariance={},
        files=describe_files(folder),
        weights=weights,
        loss=loss if loss is not None and math.isfinite(loss) else None,
        extra=dict(extra_manifest or {}),
        feed_forward_size=d.feed_forward_size,
    )
    progress("checksum", 1, 1)
    manifest.save(folder)
    return manifest


def convert_model(
    source: Path,
    output: Path,
    quantization: Quantization,
    drafts: bool,
    notes: Mapping[str, str],
    progress: Report,
) -> None:
    """Make of a checkpoint what an engine can open: the entry point ``omnidraft.converters``.

    Args:
        source: the checkpoint.
        output: folder to create.
        quantization: of a target; a drafter's weights choose their own.
        drafts: make a drafter's graph.
        notes: its name, description and licence, for the manifest.
        progress: told each step.

    Raises:
        See ``convert``.
    """
    progress("reading the tokenizer", None)
    files = tokenizer_files(source)
    if drafts:
        shares: Mapping[str, float] = _DRAFTERS_SHARES
    elif quantization != "auto":
        shares = _SHARES[quantization]
    elif holds_weights_to_take(open_checkpoint(source)):
        shares = _STORED_SHARES
    else:
        shares = _CHOICE_SHARES
    report = by_stage(progress, shares)
    if drafts:
        convert_drafter(source, output, progress=report, extra_files=files, extra_manifest=notes)
        return
    manifest = convert(
        source,
        output,
        quantization,
        calibration=Tokenizer(files).encode(CALIBRATION_TEXT),
        progress=report,
        extra_files=files,
        extra_manifest=notes,
    )
    if manifest.loss is not None:
        progress(manifest.choice_text, None)
