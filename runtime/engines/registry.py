"""Which engines there are, and which of them opens a path.

To add an engine write ``engines/NAME.py`` with a ``CausalModel`` and an ``ENGINE`` that describes
it, and add its name to ``Engine``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.errors import ModelNotFoundError, OptionError
from omnidraft.runtime.storage.manifest import BUNDLE_FILE

Engine = Literal["onnx", "external-onnx", "transformers", "qnn", "executorch"]
"""``onnx``: a folder converted or exported here; ``qnn``, ``executorch``: bundles for these;
``external-onnx``: a decoder that onnxruntime-genai's builder, optimum or transformers.js wrote;
``transformers``: a checkpoint, run by PyTorch. A path is opened by the first of them that can."""
ENGINES: tuple[Engine, ...] = get_args(Engine)


@dataclass(frozen=True)
class EngineSpec:
    """What there is to know of an engine before it is used.

    Args:
        load: opens a path with so many threads and, if ``takes_context``, a longest sequence.
        opens: whether a path, which is no bundle, holds what the engine runs. A bundle names its
            engine itself.
        what: what that is, for people; "": only bundles.
        takes_context: whether the longest sequence can be chosen.
        checkpoints: whether it runs checkpoints as they were published. Unless such an engine is
            asked for by name, checkpoints are converted.
        check: raises MissingDependencyError where a package is missing that it needs for any model.
    """

    load: Callable[[Path, int, int | None], CausalModel]
    opens: Callable[[Path], bool] = lambda path: False
    what: str = ""
    takes_context: bool = False
    checkpoints: bool = False
    check: Callable[[], None] = lambda: None


def engine_spec(engine: Engine) -> EngineSpec:
    """The ``ENGINE`` of an engine's file, which is imported only now.

    Raises:
        OptionError: there is no such engine.
    """
    if engine not in ENGINES:
        raise OptionError(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    module = import_module(f"omnidraft.runtime.engines.{engine.replace('-', '_')}")
    spec: EngineSpec = module.ENGINE
    return spec


def engine_of(path: Path) -> Engine:
    """The engine that can run what a path holds as it is.

    Args:
        path: a folder, a GGUF file or an ONNX file.

    Raises:
        ModelNotFoundError: it holds no model that is known here, or one whose file is to be named.
    """
    if (path / BUNDLE_FILE).is_file():
        from omnidraft.runtime.storage.bundle import Bundle

        bundle = Bundle.load(path, checksums=False)
        if bundle.backend == "gguf":
            raise ModelNotFoundError(
                f"{path} was exported for llama.cpp. Name the GGUF file in it: "
                f"{path / bundle.graphs[0].file}."
            )
        return "external-onnx" if bundle.layout == "genai" else bundle.backend
    for engine in ENGINES:
        if engine_spec(engine).opens(path):
            return engine
    known = [what for engine in ENGINES if (what := engine_spec(engine).what)]
    raise ModelNotFoundError(f"{path} holds no model{_hint(path)}. Known are: {'; '.join(known)}.")


def _hint(path: Path) -> str:
    """What of a model lies near, in words."""
    if path.is_file():
        whole = path.with_name("config.json")
        if whole.is_file() and (path == whole or path.suffix in (".safetensors", ".bin")):
            return f" by itself: name its folder, {path.parent}"
        return ""
    ggufs = sorted(file.name for file in path.glob("*") if file.suffix.lower() == ".gguf")
    if not ggufs:
        return ""
    more = " …" if ggufs[3:] else ""
    return f" as a folder: name one of its GGUF files ({', '.join(ggufs[:3])}{more})"


def _check_engine(path: Path, engine: Engine) -> None:
    """Refuse an engine that was asked for, where the path is made for another one.

    Raises:
        OptionError: the path is made for another one.
        DamagedFileError: a bundle's manifest cannot be read.
    """
    # What others made may hold several forms of a model; what was made here holds one.
    made_here = (path / BUNDLE_FILE).is_file() or engine_spec("onnx").opens(path)
    if not made_here or (fitting := engine_of(path)) == engine:
        return
    what = engine_spec(fitting).what or "a bundle"
    raise OptionError(
        f"the engine {engine} cannot run {path}, which holds a model for the engine {fitting} "
        f"({what}). Leave the engine out, or name {fitting}"
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
        OptionError: the engine takes no ``context``, the path is made for another engine, or there
            is no such engine.
        ModelNotFoundError: the path holds no model that the engine runs.
        DamagedFileError: a file cannot be read.
        MissingDependencyError: the engine needs an optional package.
    """
    if engine is None:
        engine = engine_of(path)
    else:
        _check_engine(path, engine)
    spec = engine_spec(engine)
    if context is not None and not spec.takes_context:
        raise OptionError(f"the engine {engine} takes no context: its models hold what they hold")
    return spec.load(path, threads, context)
