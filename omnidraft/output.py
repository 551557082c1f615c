"""What the commands share: one JSON object on stdout."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]


def print_json(value: dict[str, Any]) -> None:
    """Write ``value`` as one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=True) + "\n")
    sys.stdout.flush()
