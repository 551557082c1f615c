"""A drafter's tokens in the order of how often it proposes them.

Then a head that computes only the first so many rows misses little: see ``drafted_tokens``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch
from torch import Tensor

from omnidraft.distill.batches import Batch
from omnidraft.distill.network import Drafter


@torch.no_grad()
def proposals(model: Drafter, batches: Iterable[Batch]) -> Tensor:
    """float64 [vocab]: the sum of each token's probability over positions of text."""
    model = model.eval()
    head = model.head()
    mass = torch.zeros(len(head), dtype=torch.float64, device=head.device)
    for batch in batches:
        hidden = model(batch.ids).flatten(0, 1)[batch.where]
        for rows in hidden.split(8192):
            mass += torch.softmax((rows @ head.T).float(), -1).sum(0, dtype=torch.float64)
    return mass.cpu()


def order_of(mass: Tensor, fixed: Iterable[int]) -> list[int]:
    """Tokens, the most proposed first, but ``fixed`` ones before all others."""
    mass = mass.clone()
    mass[list(fixed)] = float("inf")
    return [int(token) for token in torch.argsort(mass, descending=True, stable=True)]


def reordered_tokenizer(content: bytes, order: list[int]) -> bytes:
    """A tokenizer.json of BPE or Unigram whose token ``order[i]`` has become token i."""
    place = {token: i for i, token in enumerate(order)}
    tokenizer = json.loads(content)
    vocabulary = tokenizer["model"]["vocab"]
    if isinstance(vocabulary, list):  # of a Unigram model, whose ids are places
        tokenizer["model"]["vocab"] = [vocabulary[token] for token in order]
        if tokenizer["model"].get("unk_id") is not None:
            tokenizer["model"]["unk_id"] = place[tokenizer["model"]["unk_id"]]
    else:
        moved = ((token, place[i]) for token, i in vocabulary.items())
        tokenizer["model"]["vocab"] = dict(sorted(moved, key=lambda item: item[1]))
    for added in tokenizer.get("added_tokens", []):
        added["id"] = place[added["id"]]
    post = tokenizer.get("post_processor") or {}
    for part in [post, *post.get("processors", [])]:
        if part.get("type") == "TemplateProcessing":
            for special in part["special_tokens"].values():
                special["ids"] = [place[token] for token in special["ids"]]
    return (json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n").encode()
