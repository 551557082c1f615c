"""Target tokens to draft tokens, by bytes: exactly what the drafter is fed at run time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

BOS, NEWLINE = 1, 13  # Llama-2's <s> and <0x0A>


@dataclass
class Alignment:
    """Draft segmentation of each target token, in compressed rows.

    flat: int64 [sum of lengths], draft tokens; start, count: int64 [target vocabulary].
    first: int64 [target vocabulary], the first draft token of each segmentation.
    """

    flat: torch.Tensor
    start: torch.Tensor
    count: torch.Tensor
    first: torch.Tensor

    def to(self, device: str) -> Alignment:
        """Copy to a device."""
        return Alignment(*(t.to(device) for t in (self.flat, self.start, self.count, self.first)))

    def expand(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Target tokens int64 [n] -> draft tokens, owning target index, piece number, all [m]."""
        count = self.count[tokens]
        owner = torch.repeat_interleave(count)
        piece = torch.arange(len(owner), device=tokens.device) - (count.cumsum(0) - count)[owner]
        return self.flat[self.start[tokens][owner] + piece], owner, piece

    def segmentation(self, token: int) -> tuple[int, ...]:
        """Draft tokens of one target token."""
        start, count = int(self.start[token]), int(self.count[token])
        return tuple(self.flat[start : start + count].tolist())


def bare_tokenizer(path: Path) -> Tokenizer:
    """Llama-2's tokenizer without the prefix space it normally adds."""
    spec = json.loads(path.read_text())
    spec["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return Tokenizer.from_str(json.dumps(spec))


def build_alignment(surfaces: list[bytes | None], draft: Tokenizer) -> Alignment:
    """Segment every target token: the direct draft token if there is one, else Llama-2's pieces."""
    direct: dict[bytes, int] = {}
    byte_token: dict[int, int] = {}
    for piece, i in draft.get_vocab(with_added_tokens=False).items():
        if piece.startswith("<0x") and piece.endswith(">") and len(piece) == 6:
            byte_token[int(piece[3:5], 16)] = i
        elif i > 2:
            direct[piece.replace("▁", " ").encode()] = i
    for byte, i in byte_token.items():
        direct.setdefault(bytes([byte]), i)

    rows: list[list[int]] = []
    for surface in surfaces:
        if surface is None:
            rows.append([NEWLINE])
        elif surface in direct:
            rows.append([direct[surface]])
        else:
            try:
                rows.append(draft.encode(surface.decode(), add_special_tokens=False).ids)
            except UnicodeDecodeError:
                rows.append([byte_token[b] for b in surface])
    count = torch.tensor([len(row) for row in rows])
    flat = torch.tensor([d for row in rows for d in row])
    start = count.cumsum(0) - count
    return Alignment(flat, start, count, flat[start])
