"""Record what the cost-aware policy decides: ``python tests/vectors/record_policy.py``.

README.md describes the file.
"""

from __future__ import annotations

import random
from pathlib import Path

from omnidraft._native import CostAware, CostCurve, Costs, Judged, Outcome

TARGETS = (
    {1: 1.0, 2: 1.03, 4: 1.27, 8: 1.7, 16: 2.6, 32: 4.2},
    {1: 1.0, 2: 1.7, 4: 2.5, 8: 4.0, 16: 6.9, 32: 13.0},
    {1: 1.0, 2: 1.01, 8: 1.05, 32: 1.2},
)
ROUNDS = 75


def words(*values: object) -> str:
    return " ".join(repr(value) if isinstance(value, float) else str(value) for value in values)


def policy(seed: int) -> list[str]:
    """A policy's life in a world that is hard, easy or in between by turns."""
    rng = random.Random(seed)
    target = TARGETS[seed % 3]
    step = rng.choice([0.02, 0.1, 0.4])
    drafter = {1: step, 32: step + 0.2}
    decides = CostAware(Costs({256: CostCurve(target)}, CostCurve(drafter)))
    passing, drafting = CostCurve(target), CostCurve(drafter)
    tree = seed % 2 == 0
    lines = [f"policy {'tree' if tree else 'chain'} {seed}"]
    for name, curve in (("target", target), ("drafter", drafter)):
        lines.append(words(name, *(x for point in curve.items() for x in point)))
    unread, context = 90, 100
    for round_ in range(ROUNDS):
        ease = (0.85, 0.1, 0.6)[round_ // 25]
        found = rng.choice([0, 0, 6])
        room = rng.choice([0, 3, 200])
        limit = decides.begin(room, room, context, unread, found)
        lines.append(words("begin", room, room, context, unread, found, limit))
        gains = [0.5**i for i in range(1, found)] if tree else []
        open_nodes, passes, scores = [1.0], [], []
        while True:
            chosen = decides.layer(open_nodes, gains, limit)
            lines.append(words("layer", limit, chosen, len(open_nodes), *open_nodes, *gains))
            if not chosen:
                break
            size = chosen if passes else unread
            passes.append((size, drafting.seconds(size) * rng.uniform(0.9, 1.4)))
            scores += [rng.uniform(0.3, 0.99) for _ in range(chosen)]
            last = open_nodes[0] * scores[-1]
            siblings = [last * 0.3, last * 0.1] if tree else []
            gains = sorted([*gains, last, *siblings], reverse=True)
            open_nodes = [last, *siblings]
        count = decides.count(gains, limit)
        lines.append(words("count", limit, count, *gains))
        accepted = sum(rng.random() < ease for _ in range(count)) // 2
        judged = [
            Judged(rng.choice([0, 0, 1, 2, 5]) if tree else 0, score, rng.random() < ease)
            for score in scores[:count]
        ]
        known = min(found, accepted + 1)
        right = min(known, accepted)
        seconds = passing.seconds(count + 1) * rng.uniform(0.95, 1.3)
        match = 3 if found else 0
        rest = rng.uniform(0.01, 0.03)
        outcome = (count + 1, accepted + 1, passes, judged, seconds, rest, match, known, right)
        decides.observe(Outcome(*outcome))
        lines.append(
            words(
                *("observe", count + 1, accepted + 1, seconds, rest, match, known, right),
                *(len(passes), *(x for each in passes for x in each)),
                *(x for each in judged for x in (each.rank, each.score, int(each.right))),
            )
        )
        unread = 1 + accepted if passes else unread + 1
        context += accepted + 1
    lines.append(words("calibration", *(x for line in decides.calibration for x in line)))
    return [*lines, "end"]


if __name__ == "__main__":
    recorded = ["# See README.md.", *(line for seed in range(6) for line in policy(seed))]
    path = Path(__file__).parent / "policy.txt"
    path.write_text("\n".join(recorded) + "\n", "utf-8")
