"""Engines: each runs one kind of model folder behind ``CausalModel``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.errors import ModelNotFoundError, OptionError
from omnidraft.runtime.storage.manifest import BUNDLE_FILE, MANIFEST_FILE

Engine = Literal["onnx", "external-onnx", "transformers", "qnn", "executorch"]
"""``onnx``: a folder converted or exported here; ``qnn``, ``executorch``: bundles for these;
``external-onnx``: a decoder that onnxruntime-genai's builder, optimum or transformers.js wrote;
``transformers``: a checkpoint, run by PyTorch."""


def engine_of(path: Path) -> Engine:
    """The engine that can run what a path holds as it is.

    Args:
        path: a folder, a GGUF file or an ONNX file.

    Raises:
        ModelNotFoundError: it holds no model that is known here.
    """
    from omnidraft.runtime.engines.external_onnx import find_decoder

    if path.is_file():
        if path.suffix == ".gguf":
            return "transformers"
        if path.suffix == ".onnx":
            return "external-onnx"
    elif (path / BUNDLE_FILE).is_file():
        from omnidraft.runtime.storage.bundle import Bundle

        return Bundle.load(path, checksums=False).backend
    elif (path / MANIFEST_FILE).is_file():
        return "onnx"
    elif (path / "genai_config.json").is_file():
        return "external-onnx"
    elif (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return "transformers"
    elif path.is_dir() and find_decoder(path) is not None:
        return "external-onnx"
    raise ModelNotFoundError(
        f"{path} holds no model. Known are: a .gguf file; a folder with config.json and "
        "*.safetensors; a folder that omnidraft converted or exported; a folder with an ONNX "
        "decoder (genai_config.json, model.onnx or onnx/decoder_model_merged.onnx) and "
        "tokenizer.json."
    )


def open_engine(
    path: Path, engine: Engine | None = None, *, threads: int = 2, context: int | None = None
) -> CausalModel:
    """Load the model a path holds.

    Args:
        path: a folder, a GGUF file or an ONNX file.
        engine: default: the one that ``engine_of`` names.
        threads: threads for one pass.
        context: longest sequence in tokens; None: the engine's default.

    Raises:
        OptionError: the engine takes no ``context``.
        ModelNotFoundError: the path holds no model that the engine runs.
        DamagedFileError: a file cannot be read.
        MissingDependencyError: the engine needs an optional package.
    """
    engine = engine or engine_of(path)
    if engine == "onnx":
        from omnidraft.runtime.engines.onnx import OnnxModel

        return OnnxModel(path, threads=threads, max_length=context)
    if engine == "external-onnx":
        from omnidraft.runtime.engines.external_onnx import ExternalOnnxModel

        return ExternalOnnxModel(path, threads=threads, max_length=context)
    if context is not None:
        raise OptionError(f"the engine {engine} takes no context: its models hold what they hold")
    if engine == "qnn":
        from omnidraft.runtime.engines.qnn import QnnModel

        return QnnModel(path, threads=threads)
    if engine == "executorch":
        from omnidraft.runtime.engines.executorch import ExecuTorchModel

        return ExecuTorchModel(path, threads=threads)
    from omnidraft.runtime.engines.transformers import TransformersModel

    return TransformersModel(path, threads=threads)
