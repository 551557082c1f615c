"""Many conversations at a time, each at its own place: what is forced, what sampled, when it is
over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor

from omnidraft.distill.config import Sampling
from omnidraft.distill.sampling.openings import Openings
from omnidraft.distill.sampling.turns import Turns
from omnidraft.distill.shards import FORCED, TOP, Document
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.text.tokenizer import Tokenizer

# Openings for each that is short enough, beyond which there is no use in going on.
_TRIES = 100


@dataclass(frozen=True)
class Plans:
    """Beginnings of conversations, in the teacher's tokens.

    Args:
        tokens: int64 [plans, longest], padded.
        lengths: int64 [plans].
        whole: int64 [plans], 1 where the beginning ends with the answer's header, 0 where the
            teacher goes on with the user's message.
    """

    tokens: Tensor
    lengths: Tensor
    whole: Tensor


def make_plans(
    count: int,
    tokenizer: Tokenizer,
    turns: Turns,
    openings: Openings,
    longest: int,
    random: Random,
) -> Plans:
    """Openings behind the template's own words.

    Args:
        longest: tokens of a conversation, of which its beginning takes less than half.

    Raises:
        OmniDraftError: hardly any opening is so short.
    """
    rows: list[list[int]] = []
    whole: list[int] = []
    tries = 0
    while len(rows) < count:
        tries += 1
        text, ends = openings.draw(random)
        ids = tokenizer.encode(text, add_bos=False)
        row = [*turns.before, *ids, *(turns.to_answer if ends else [])]
        if len(row) < longest // 2:
            rows.append(row)
            whole.append(int(ends))
        elif tries > _TRIES * (len(rows) + 1):
            raise OmniDraftError(
                f"Of {tries} openings {len(rows)} have fewer than {longest // 2} tokens with the "
                "teacher's chat format. Take shorter prompts, or a larger sampling.longest."
            )
    lengths = torch.tensor([len(row) for row in rows])
    table = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row)
    return Plans(table, lengths, torch.tensor(whole))


class Conversations:
    """The state of some conversations, one a row. Every change is made in place, so that a CUDA
    graph can hold it.

    Args:
        again: whether a row whose conversation is over begins another one.

    ``token`` int64 [rows], ``position`` int32 [rows] and ``kind`` int8 [rows] are of the token that
    the teacher reads next; ``temperature`` float32 [rows] of what it is to say after it.
    """

    def __init__(
        self, plans: Plans, turns: Turns, sampling: Sampling, rows: int, device: str, again: bool
    ) -> None:
        self.plans = Plans(
            *(each.to(device) for each in (plans.tokens, plans.lengths, plans.whole))
        )
        self.rows, self.longest, self._again = rows, sampling.longest, again
        self._another = sampling.another_turn if turns.to_user is not None else 0.0
        self._temperatures = torch.tensor(sampling.temperatures, device=device)
        headers = [turns.to_user or [0], turns.to_answer]
        width = max(map(len, headers))
        padded = [header + [0] * (width - len(header)) for header in headers]
        self._headers = torch.tensor(padded, device=device)
        self._header_lengths = torch.tensor([len(header) for header in headers], device=device)
        self._ends = torch.tensor(sorted(turns.ends), device=device)

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(rows, dtype=dtype, device=device)

        self._plan = torch.arange(rows, device=device) % len(plans.lengths)
        self.token = self.plans.tokens[self._plan, 0].clone()
        self.position = zeros(torch.int32)
        self.kind = zeros(torch.int8)
        self._answering = self.plans.whole[self._plan].clone()
        self._left = zeros(torch.long)  # tokens of a header that are still to be forced
        self.over = zeros(torch.bool)  # ``token`` is the last of its conversation
        self._answer_temperature = self._draw_temperatures(device)
        self.temperature = zeros(torch.float32)
        self.set_temperature()

    def set_temperature(self) -> None:
        """Of the next tokens."""
        answering = self._answering == 1
        self.temperature.copy_(torch.where(answering, self._answer_temperature, 1.0))

    def advance(self, sampled: Tensor) -> None:
        """Go on by one token.

        Args:
            sampled: int64 [rows], what the teacher says; it stands where nothing is forced.
        """
        plans, device = self.plans, self.token.device
        at = self.position.long() + 1
        planned = at < plans.lengths[self._plan]
        in_header = ~planned & (self._left > 0)
        place = self._header_lengths[self._answering] - self._left
        forced = torch.where(
            planned,
            plans.tokens[self._plan, at.clamp(max=plans.tokens.shape[1] - 1)],
            self._headers[self._answering, place.clamp(0, self._headers.shape[1] - 1)],
        )
        free = ~planned & ~in_header
        ended = free & (sampled[:, None] == self._ends).any(-1)
        user_ends = ended & (self._answering == 0)
        chance = torch.rand(self.rows, device=device)
        asks_again = ended & (self._answering == 1) & (chance < self._another)
        asks_again &= at < self.longest * 5 // 8
        answering = torch.where(user_ends, 1, torch.where(asks_again, 0, self._answering))
        turns = user_ends | asks_again
        # A message ends as the template ends it, whichever token the teacher said.
        token = torch.where(free, sampled, forced)
        token = torch.where(turns, self._headers[answering, 0], token)
        kind = torch.where(free, 1 + self._answering, FORCED).to(torch.int8)
        left = torch.where(
            turns, self._header_lengths[answering] - 1, self._left - in_header.long()
        )
        over = (ended & ~turns) | (at >= self.longest - 1)
        if self._again:
            new = self.over
            fresh = torch.randint(len(plans.lengths), (self.rows,), device=device)
            self._plan.copy_(torch.where(new, fresh, self._plan))
            drawn = self._draw_temperatures(device)
            self._answer_temperature.copy_(torch.where(new, drawn, self._answer_temperature))
            token = torch.where(new, plans.tokens[self._plan, 0], token)
            kind = torch.where(new, FORCED, kind).to(torch.int8)
            answering = torch.where(new, plans.whole[self._plan], answering)
            left = torch.where(new, 0, left)
            at = torch.where(new, 0, at)
            over = ~new & over
        else:
            over = over | self.over
        self.token.copy_(token)
        self.kind.copy_(kind)
        self._answering.copy_(answering)
        self._left.copy_(left)
        self.position.copy_(at.to(torch.int32))
        self.over.copy_(over)
        self.set_temperature()

    def _draw_temperatures(self, device: torch.device | str) -> Tensor:
        count = len(self._temperatures)
        return self._temperatures[torch.randint(count, (self.rows,), device=device)]


class Recorder:
    """Cuts what rows have said into documents."""

    def __init__(self, rows: int) -> None:
        self._parts: list[list[tuple[np.ndarray, ...]]] = [[] for _ in range(rows)]

    def add(self, log: Sequence[Tensor]) -> list[Document]:
        """Take what some steps have read.

        Args:
            log: token, kind, position [steps, rows]; top, shares [steps, rows, TOP] and
                likelihood [steps, rows], which belong to the token after it.

        Returns:
            The documents that are complete.
        """
        columns = [each.transpose(0, 1).contiguous().cpu().numpy() for each in log]
        documents = []
        for row, parts in enumerate(self._parts):
            values = [column[row] for column in columns]
            starts = np.flatnonzero(values[2] == 0)
            for start, end in zip([0, *starts], [*starts, len(values[2])], strict=True):
                if start in starts and parts:
                    documents.append(_joined(parts))
                    parts.clear()
                if end > start:
                    parts.append(tuple(value[start:end] for value in values))
        return documents


def document_of(columns: Sequence[np.ndarray]) -> Document:
    """A document of what its row has read.

    Args:
        columns: token, kind, position [n], and of what comes after each: top, shares [n, TOP] and
            likelihood [n].
    """
    token, kind, _, top, shares, likelihood = columns
    # What was likely after a token belongs to the next one; the first one's is not known.
    none = np.zeros((1, TOP))
    return Document(
        token.astype(np.int32),
        kind.astype(np.int8),
        np.concatenate([none.astype(np.int32), top[:-1].astype(np.int32)]),
        np.concatenate([none.astype(np.float16), shares[:-1].astype(np.float16)]),
        np.concatenate([[np.float32("nan")], likelihood[:-1].astype(np.float32)]),
    )


def _joined(parts: list[tuple[np.ndarray, ...]]) -> Document:
    return document_of([np.concatenate([part[i] for part in parts]) for i in range(6)])
