"""What a process takes while models are opened and closed, five times over."""

from __future__ import annotations

import subprocess
import sys

_MEGABYTES = r"""
import re
def megabytes():
    return int(re.search(r"RssAnon:\s*(\d+)", open("/proc/self/status").read())[1]) // 1000
"""


def check_memory_is_given_back(code: str) -> None:
    """Run code in a process of its own: what others have freed would hide it.

    Args:
        code: prints ``megabytes()`` while a large model is open, and after; five lines.
    """
    command = [sys.executable, "-c", _MEGABYTES + code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rounds = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(rounds) == 5
    assert all(closed < loaded - 30 for loaded, closed in rounds), rounds
    assert rounds[-1][1] < rounds[0][1] + 30, rounds
