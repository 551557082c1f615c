"""JSON that models and clients write."""

from __future__ import annotations

import json
from typing import Any


def read_json(text: str) -> Any:
    """The value of a text.

    Raises:
        ValueError: it is no JSON, of which NaN and infinities are none; or it nests too deep.
    """
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")
