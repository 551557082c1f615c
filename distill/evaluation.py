"""What a drafter is worth on text that it has not seen: rounds played through on the teacher's own
answers.

Where the teacher answers greedily, its answer is known beforehand: a round's first j draft tokens
are right just where the drafter, given the true text, would say the true next token j times on
end. So one pass over a document plays all its rounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnidraft.distill.network import Drafter
from omnidraft.distill.shards import ANSWER, Document
from omnidraft.distill.spellings import Alignment, Speller, align

DRAFT_LENGTH = 4


@dataclass(frozen=True)
class Figures:
    """Of one teacher.

    Args:
        answers: greedy ones, of which the other figures are.
        tokens: the teacher's, in them.
        rounds: with drafts of DRAFT_LENGTH tokens.
        first_choice: share of draft tokens that are the drafter's first choice.
        loss: mean cross-entropy of draft tokens, nats.
    """

    answers: int
    tokens: int
    rounds: int
    first_choice: float
    loss: float

    @property
    def tokens_per_round(self) -> float:
        """Block efficiency."""
        return self.tokens / max(self.rounds, 1)

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self) | {"tokens_per_round": self.tokens_per_round}


@torch.no_grad()
def evaluate(
    model: Drafter, held_out: Iterable[tuple[list[bytes | None], Document]], speller: Speller
) -> Figures:
    """Play documents through.

    Args:
        held_out: documents, and what their tokens stand for.
    """
    model = model.eval()
    device = next(model.parameters()).device
    known: tuple[list[bytes | None], Alignment] | None = None
    answers = tokens = rounds = right = drafts = 0
    loss = 0.0
    for surfaces, document in held_out:
        said = document.kinds == ANSWER
        given = not document.shares[said].any()  # text, whose author gave no probabilities
        greedy = (document.tokens[said] == document.top[said, 0]).all()
        if not said.any() or not (given or greedy):
            continue
        if known is None or known[0] is not surfaces:
            known = surfaces, align(surfaces, speller)
        draft, owner, _ = known[1].expand(document.tokens)
        if given:  # a token of it may be a whole message: the drafter's own are counted
            said, owner = said[owner], np.arange(len(draft))
        ids = np.concatenate([[speller.begin], draft])[: model.shape.positions]
        hidden = model(torch.from_numpy(ids)[None].to(device))[0, :-1]
        logits = (hidden @ model.head().T).float()
        said_next = torch.from_numpy(ids[1:]).to(device)
        mine = torch.from_numpy(said[owner[: len(ids) - 1]]).to(device)
        matches = (logits.argmax(-1) == said_next).cpu().numpy()
        losses = torch.nn.functional.cross_entropy(logits, said_next, reduction="none")
        answers += 1
        right += int(matches[mine.cpu().numpy()].sum())
        drafts += int(mine.sum())
        loss += float(losses[mine].sum())
        played = play(matches, owner[: len(matches)], said, DRAFT_LENGTH)
        tokens, rounds = tokens + played[0], rounds + played[1]
    count = max(drafts, 1)
    return Figures(answers, tokens, rounds, right / count, loss / count)


def play(
    matches: NDArray[np.bool_], owner: NDArray[np.int64], said: NDArray[np.bool_], length: int
) -> tuple[int, int]:
    """Rounds over an answer.

    Args:
        matches: whether the drafter's first choice is the true token, for each draft token.
        owner: the target's token that each belongs to, rising.
        said: for each target token whether it is the answer's.
        length: of drafts, in draft tokens.

    Returns:
        Target tokens, and rounds in which they came.
    """
    first = np.searchsorted(owner, np.arange(len(said) + 1))
    tokens = rounds = 0
    place, end = 0, int(owner[-1]) + 1 if len(owner) else 0
    while place < end:
        if not said[place]:
            place += 1
            continue
        # Whole target tokens among the draft tokens that are right.
        stop = min(int(first[place]) + length, len(matches))
        good = int(first[place])
        while good < stop and matches[good]:
            good += 1
        after = place
        while after < end and said[after] and first[after + 1] <= good:
            after += 1
        if after < end and said[after]:  # the target's own
            after += 1
        tokens += after - place
        rounds += 1
        place = after
    return tokens, rounds
