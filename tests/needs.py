"""What a test compares with and `make test` does without."""

from __future__ import annotations

from typing import Any

import pytest
from skips import ELSEWHERE


def needs(module: str) -> Any:
    """The module; skips the test, or the file of tests, where it is not installed."""
    return pytest.importorskip(module, reason=f"{module} is not installed{ELSEWHERE}")
