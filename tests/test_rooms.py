"""Dependencies point one way: omnidraft (commands) → distill → export → runtime, room by room.

The server stands on the runtime alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "omnidraft": "omnidraft",
    "omnidraft.runtime": "runtime",
    "omnidraft.export": "export",
    "omnidraft.distill": "distill",
    "omnidraft.serve": "serve",
}
# What each room of the runtime may import of the others.
ROOMS = {
    "storage": set(),
    "text": {"storage"},
    "engines": {"storage"},
    "models": {"storage", "text", "engines"},
    "decoding": {"engines", "models"},
    "learning": {"storage", "engines", "models", "decoding"},
    "profiling": {"storage", "text", "engines", "models", "decoding", "learning"},
}
# What decides, told numbers and nothing else: it can be tested without models.
PURE = {
    *(f"learning/{name}.py" for name in ("trial", "objective", "optimizer")),
}
HARMLESS = {"__future__", "collections", "dataclasses", "enum", "math", "numpy", "typing"}
# A device has numpy, onnxruntime, tokenizers, jinja2 and this package.
FOREIGN = {
    *("onnx", "gguf", "torch", "transformers", "torchao", "executorch", "optimum"),
    *("typer", "starlette", "uvicorn", "prometheus_client", "llguidance"),
}
# Engines for what somebody has installed import it when they are opened.
LAZILY = {"runtime/engines/executorch.py", "runtime/engines/transformers.py"}


def files(package: str) -> list[Path]:
    return sorted((ROOT / PACKAGES[package]).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Modules that a file imports, those for type checkers included, and whether at its top."""
    tree = ast.parse(path.read_text("utf-8"))
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports by a relative name"
            assert node.module is not None
            yield node.module, id(node) in top


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[2] if module.startswith("omnidraft.runtime.") and parts[2] in ROOMS else None


def test_every_folder_of_the_runtime_is_a_room() -> None:
    folders = {path.parent.name for path in files("omnidraft.runtime")} - {"runtime"}
    assert folders == ROOMS.keys()


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "omnidraft"])
def test_packages_import_downwards(package: str) -> None:
    above = {
        "omnidraft.runtime": ("export", "distill", "serve", "cli"),
        "omnidraft.export": ("distill", "serve", "cli"),
        "omnidraft.distill": ("serve", "cli"),
        "omnidraft.serve": ("export", "distill", "cli"),
    }[package]
    for path in files(package):
        for module, _ in imports(path):
            if path.parts[-2:] == ("optimum", "command.py"):
                continue  # optimum's command is ours
            assert not module.startswith(tuple(f"omnidraft.{name}" for name in above)), (
                f"{path.relative_to(ROOT)} imports {module}"
            )


def test_the_runtime_needs_what_a_device_has() -> None:
    for path in files("omnidraft.runtime"):
        name = path.relative_to(ROOT).as_posix()
        for module, at_top in imports(path):
            if module.split(".")[0] in FOREIGN:
                assert name in LAZILY and not at_top, f"{name} imports {module}"


@pytest.mark.parametrize("name", ROOMS)
def test_rooms_import_only_what_lies_below(name: str) -> None:
    for path in (ROOT / "runtime" / name).rglob("*.py"):
        for module, _ in imports(path):
            other = room(module)
            assert other in {None, name} | ROOMS[name], (
                f"{path.relative_to(ROOT)} imports {module}, which lies above {name}"
            )
            # What stands beside the rooms and is made of them.
            if name != "profiling":
                assert module not in {"omnidraft.runtime.session", "omnidraft.runtime.bench"}


@pytest.mark.parametrize("name", sorted(PURE))
def test_what_decides_knows_no_models_and_no_threads(name: str) -> None:
    for module, _ in imports(ROOT / "runtime" / name):
        own = module.removeprefix("omnidraft.runtime.").replace(".", "/") + ".py"
        assert module.split(".")[0] in HARMLESS or own in PURE, module
