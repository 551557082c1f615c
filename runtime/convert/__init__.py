"""Convert a checkpoint to a batch-invariant ONNX decoder, without torch and in bounded memory."""

from __future__ import annotations

import errno
import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.manifest import Manifest, describe_files, file_sha256

from .checkpoint import open_checkpoint, source_files
from .graph import Progress, Quantization, max_threads, write_graph
from .invariance import measure_invariance

__all__ = ["Progress", "Quantization", "convert"]


def convert(
    source: Path,
    output: Path,
    quantization: Quantization = "4bit",
    *,
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
        quantization: ``4bit`` or ``8bit`` weights in blocks of 32, or ``float32``.
        progress: called with a stage (``layers``, ``checksum``, ``invariance``), steps done, steps
            in all.
        extra_files: further files to write into the folder, say the tokenizer, by name.
        extra_manifest: stored in the manifest as ``extra``.

    Raises:
        ModelNotFoundError, DamagedFileError: see ``open_checkpoint``.
        OmniDraftError: the architecture is not supported, or the disk is full.
    """
    checkpoint = open_checkpoint(source)
    temporary: Path | None = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
        write_graph(checkpoint, temporary, quantization, progress)
        for name, content in (extra_files or {}).items():
            (temporary / name).write_bytes(content)
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
            max_threads=max_threads(d),
            source_sha256=_source_sha256(source),
            invariance={},
            files=describe_files(temporary),
            extra=dict(extra_manifest or {}),
        )
        progress("checksum", 1, 1)
        manifest.save(temporary)
        manifest = measure_invariance(temporary, progress)
        manifest.save(temporary)
        # mkdtemp makes folders that only their owner may read.
        temporary.chmod(0o755)
        _replace(temporary, output)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OmniDraftError(
                f"The disk of {output.parent} is full; nothing was kept. Free space and try again."
            ) from error
        raise
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _source_sha256(source: Path) -> str:
    """A file's sha256; for a folder, the sha256 of its files' sha256 in order."""
    digests = [file_sha256(path) for path in source_files(source)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _replace(temporary: Path, output: Path) -> None:
    """Rename ``temporary`` to ``output``, moving what is there out of the way first."""
    if not output.exists():
        temporary.rename(output)
        return
    old = temporary.with_name(f"{temporary.name}-old")
    output.rename(old)
    try:
        temporary.rename(output)
    except BaseException:
        old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
