"""A stand-in for the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def stand_in_hub(
    monkeypatch: pytest.MonkeyPatch, effect: Callable[[Path], object]
) -> list[list[str]]:
    """Replace the hub by one whose download is ``effect``.

    Returns:
        The patterns of the files of each download, as they come.
    """
    import huggingface_hub

    downloads: list[list[str]] = []

    def snapshot_download(**options: Any) -> str:
        if options.get("local_files_only"):
            raise FileNotFoundError("not cached")
        downloads.append(options["allow_patterns"])
        effect(Path(options["local_dir"]))
        return str(options["local_dir"])

    def model_info(self: object, name: str, *, revision: str | None, timeout: float) -> None:
        assert timeout <= 30

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    return downloads
