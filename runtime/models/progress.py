"""How fetching, converting and measuring say what they do."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float | None], None]
"""Called with what is being done and the fraction done, None where that is unknown."""

# The steps that the conversion reports, in words.
_STAGES = {
    "calibration": "calibrating",
    "layers": "converting",
    "checksum": "computing checksums",
    "invariance": "checking batch invariance",
}


def silent(step: str, fraction: float | None) -> None:
    """The default progress: none."""


def by_stage(progress: Progress) -> Callable[[str, int, int], None]:
    """What tells ``progress`` each step of a stage: (stage, steps done, steps in all)."""

    def report(stage: str, done: int, total: int) -> None:
        progress(_STAGES.get(stage, stage), done / total if total else None)

    return report
