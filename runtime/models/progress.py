"""How fetching, converting and measuring say what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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


def by_stage(
    progress: Progress, shares: Mapping[str, float] | None = None
) -> Callable[[str, int, int], None]:
    """What tells ``progress`` each step of a stage: (stage, steps done, steps in all).

    Args:
        shares: of the time, by stage, in the order of the stages. The fraction told is then that of
            all stages together, and never falls; without, it is that of the stage.
    """
    reached = 0.0

    def report(stage: str, done: int, total: int) -> None:
        nonlocal reached
        fraction = done / total if total else None
        if shares is not None:
            names = list(shares)
            before = sum(shares[name] for name in names[: names.index(stage)])
            here = before + shares[stage] * (fraction or 0.0)
            fraction = reached = max(reached, min(1.0, here / sum(shares.values())))
        progress(_STAGES.get(stage, stage), fraction)

    return report
