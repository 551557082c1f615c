"""Texts that come with the export: for static quantization, and held ones to measure parity on.

Both are answers of SmolLM2-135M-Instruct (Apache-2.0) to questions written for this project: chat,
arithmetic, Python and summaries, no question in both.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError


def calibration_texts(path: Path | None = None) -> list[str]:
    """Texts to calibrate with.

    Args:
        path: JSON lines, each with a ``text`` or a ``prompt`` and, maybe, an ``answer``; anything
            else is plain text, its paragraphs set apart by blank lines. None: the built-in texts.

    Raises:
        ModelNotFoundError: there is no such file.
        DamagedFileError: it is a folder, or holds no text.
    """
    if path is None:
        return _parse(_built_in("calibration.jsonl"), "calibration.jsonl")
    if path.is_dir():
        raise DamagedFileError(f"{path} is a folder. Name a file of calibration text.")
    if not path.is_file():
        raise ModelNotFoundError(f"There is no calibration file {path}.")
    try:
        content = path.read_text("utf-8-sig")
    except ValueError as error:
        raise DamagedFileError(f"{path} is not UTF-8 text: {error}.") from error
    if path.suffix in (".jsonl", ".json"):
        texts = _parse(content, str(path))
    else:
        texts = [part.strip() for part in content.split("\n\n") if part.strip()]
    if not texts:
        raise DamagedFileError(f"{path} holds no text to calibrate with.")
    return texts


def held_texts() -> list[str]:
    """The built-in texts that parity is measured on."""
    return _parse(_built_in("held.jsonl"), "held.jsonl")


def _built_in(name: str) -> str:
    return (resources.files(__package__) / "data" / name).read_text("utf-8")


def _parse(content: str, source: str) -> list[str]:
    texts = []
    # Not splitlines(), which also splits at U+2028 and the like, inside of a JSON string.
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            text = entry["text"] if "text" in entry else entry["prompt"]
            parts = [text, entry["answer"]] if "answer" in entry else [text]
            if not all(isinstance(part, str) and part.strip() for part in parts):
                raise ValueError("no text")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedFileError(
                f"{source}, line {number}: a JSON object with a text or a prompt, not empty, is "
                "expected."
            ) from error
        texts.append("\n".join(parts))
    return texts
