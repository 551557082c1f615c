"""Sampled target streams to draft-token documents with soft labels, kept on the training device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from align import BOS, NEWLINE, Alignment, bare_tokenizer
from target import KIND_ANSWER, KIND_FORCED, KIND_USER, SPECIAL, TOP
from torch import Tensor

USER_WEIGHT = 0.1  # of a user message's tokens, against 1 for an answer's
BUCKETS = (128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280)


@dataclass
class Documents:
    """Flat draft tokens of documents that each begin with <s>.

    token int32 [n]; label int16 (bits of an unsigned value), share float16 [n, TOP]: the
    distribution wanted for this token given those before it; weight float16 [n], 0 = no loss;
    start, length int64 [documents].
    """

    token: Tensor
    label: Tensor
    share: Tensor
    weight: Tensor
    start: Tensor
    length: Tensor


def join(parts: list[Documents]) -> Documents:
    """Concatenate."""
    offset, starts = 0, []
    for part in parts:
        starts.append(part.start + offset)
        offset += len(part.token)
    names = ("token", "label", "share", "weight")
    flat = [torch.cat([getattr(p, n) for p in parts]) for n in names]
    return Documents(*flat, torch.cat(starts), torch.cat([p.length for p in parts]))


def one_hot(token: Tensor) -> tuple[Tensor, Tensor]:
    """Labels that are certain of each token."""
    label = token.to(torch.int16)[:, None].repeat(1, TOP)
    share = torch.zeros(len(token), TOP, dtype=torch.float16, device=token.device)
    share[:, 0] = 1
    return label, share


def aligned_documents(log: dict[str, Tensor], alignment: Alignment, hard: bool) -> Documents:
    """Documents in the tokens that the drafter sees at run time.

    log: streams [steps, B] (see Decoder.record). A draft token that begins a target token gets the
    target's distribution, summed by first draft token; a later piece of it, and every token if
    `hard`, is certain. The first document of a row is whole; the last is cut.
    """
    token = (log["token"].long() & 0xFFFF).T.reshape(-1)
    kind = log["kind"].T.reshape(-1)
    opens = log["pos"].T.reshape(-1) == 0
    draft, owner, piece = alignment.expand(token)
    first = piece == 0
    weight = torch.zeros(3, device=token.device)
    weight[KIND_USER], weight[KIND_ANSWER] = USER_WEIGHT, 1.0
    w = weight[kind[owner].long()] * (token[owner] >= SPECIAL)
    label, share = one_hot(draft)
    if not hard:
        top = (log["top_id"].long() & 0xFFFF).transpose(0, 1).reshape(-1, TOP)
        p = log["top_p"].transpose(0, 1).reshape(-1, TOP).float() * (top >= SPECIAL)
        soft = (p.sum(-1) > 0.01).roll(1) & ~opens
        # The distribution after stream position i - 1 is the one for position i.
        rows = first & soft[owner]
        before = owner[rows] - 1
        label[rows] = alignment.first[top[before]].to(torch.int16)
        share[rows] = (p[before] / p[before].sum(-1, keepdim=True)).half()
    # Put <s> before each document: its first token moves up by the number of documents so far.
    begins = first & opens[owner]
    shift = begins.cumsum(0)
    at = torch.arange(len(draft), device=draft.device) + shift
    size = len(draft) + int(shift[-1])

    def spread(value: Tensor, fill: int) -> Tensor:
        out = torch.full((size, *value.shape[1:]), fill, dtype=value.dtype, device=value.device)
        out[at] = value
        return out

    start = at[begins] - 1
    length = torch.diff(start, append=torch.tensor([size], device=start.device))
    return Documents(
        spread(draft.int(), BOS), spread(label, 0), spread(share, 0), spread(w.half(), 0),
        start, length,
    )  # fmt: skip


def canonical_rows(
    job: tuple[str, list[bytes], np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The text of streams in Llama-2's own segmentation: tokens, weights, document lengths.

    job: tokenizer file, surface of each target token, and token, kind, pos as [rows, steps].
    """
    path, surfaces, tokens, kinds, positions = job
    tokenizer = bare_tokenizer(Path(path))
    weight_of = {KIND_FORCED: 0.0, KIND_USER: USER_WEIGHT, KIND_ANSWER: 1.0}
    token_out: list[int] = []
    weight_out: list[float] = []
    lengths: list[int] = []
    for row, kind, position in zip(
        tokens.tolist(), kinds.tolist(), positions.tolist(), strict=True
    ):
        cuts = [i for i in range(len(row)) if position[i] == 0 or kind[i] != kind[i - 1]]
        for i, j in zip(cuts, [*cuts[1:], len(row)], strict=True):
            text = b"".join([surfaces[t] for t in row[i:j]]).decode(errors="replace")
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            if position[i] == 0:
                token_out.append(BOS)
                weight_out.append(0.0)
                lengths.append(1)
            token_out += ids
            weight_out += [weight_of[kind[i]]] * len(ids)
            lengths[-1] += len(ids)
    return (
        np.array(token_out, np.int32),
        np.array(weight_out, np.float16),
        np.array(lengths, np.int64),
    )


def canonical_documents(parts: dict[str, Tensor]) -> Documents:
    """Documents of certain labels from prepare.py's file."""
    label, share = one_hot(parts["token"])
    length = parts["length"]
    return Documents(
        parts["token"], label, share, parts["weight"], length.cumsum(0) - length, length
    )


# How many documents lose their head: the system prompt, also the user's header, all but the answer.
# The drafter must also work behind other chat formats, and from the first token on.
CUTS = (0.15, 0.15, 0.15)


def cut_heads(documents: Documents, system: int, user: int, seed: int) -> Documents:
    """Let random documents begin later; `batches` puts <s> over the token before the beginning.

    system, user: draft tokens of the system prompt, and of it with the user's header.
    """
    start, length = documents.start, documents.length
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(len(start), generator=generator).to(start.device)
    answers = (documents.weight == 1).nonzero()[:, 0]
    at = torch.searchsorted(answers, start).clamp(max=len(answers) - 1)
    answer = answers[at] - 1 - start
    shift = torch.zeros_like(start)
    shift[draw < sum(CUTS)] = user
    shift[draw < CUTS[0] + CUTS[2]] = system
    shift = torch.where(draw < CUTS[2], answer, shift)
    shift = torch.where(shift < length, shift, 0)
    return replace(documents, start=start + shift, length=length - shift)


def batches(
    documents: Documents, tokens: int, sharpen: float, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]]:
    """Endless shuffled batches of whole documents of like length, about `tokens` tokens each.

    Yields ids int64 [B, T], and for the positions with a loss, flat: where int64 [n] into B * T,
    label int64 [n, TOP], share float32 [n, TOP] (raised to 1 / sharpen and renormalised),
    weight float32 [n]; and the epoch (fraction). Shapes' sizes vary by bucket.
    """
    dev = documents.token.device
    generator = torch.Generator().manual_seed(seed)
    groups, low = [], 15
    for high in BUCKETS:
        inside = (documents.length > low) & (documents.length <= high)
        groups.append(inside.nonzero()[:, 0].cpu())
        low = high
    epoch = 0
    while True:
        plan: list[tuple[int, Tensor]] = []
        for high, group in zip(BUCKETS, groups, strict=True):
            shuffled = group[torch.randperm(len(group), generator=generator)]
            plan += [(high, part) for part in shuffled.split(max(1, tokens // high))]
        for i, j in enumerate(torch.randperm(len(plan), generator=generator).tolist()):
            high, part = plan[j]
            picked = part.to(dev)
            index = documents.start[picked][:, None] + torch.arange(high, device=dev)
            live = torch.arange(high, device=dev) < documents.length[picked][:, None]
            index = index.clamp(max=len(documents.token) - 1)
            ids = torch.where(live, documents.token[index].long(), NEWLINE)
            ids[:, 0] = BOS
            weight = torch.where(live, documents.weight[index].float(), 0.0)[:, 1:]
            row, col = (weight > 0).nonzero(as_tuple=True)
            flat = index[row, col + 1]
            share = documents.share[flat].float()
            if sharpen != 1.0:
                share = share ** (1.0 / sharpen)
                share = share / share.sum(-1, keepdim=True)
            label = documents.label[flat].long()
            yield ids, row * high + col, label, share, weight[row, col], epoch + i / len(plan)
        epoch += 1
