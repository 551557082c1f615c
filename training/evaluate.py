"""Block efficiency of a drafter against the target's greedy answers.

    python evaluate.py --drafter folder --greedy greedy.jsonl --gguf target.gguf \
        --tokenizer tokenizer.json

Each round the drafter greedily proposes k draft tokens from the context aligned by bytes; runs of
them become target tokens by longest match; those equal to the target's own are accepted, and the
target adds one. Block efficiency = target tokens / rounds. Knowing the target's greedy answer, no
target is run. "warm": every target token's segmentation is a known n-gram; "direct": none is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from align import BOS, Alignment, bare_tokenizer, build_alignment
from export_int8 import load_float
from network import Drafter, Shape
from target import SPECIAL, read_gguf, token_surfaces
from torch import Tensor


def match_table(alignment: Alignment, warm: bool) -> dict[tuple[int, ...], int]:
    """Runs of draft tokens to target tokens."""
    table: dict[tuple[int, ...], int] = {}
    for token in range(SPECIAL, len(alignment.count)):
        run = alignment.segmentation(token)
        if warm or len(run) == 1:
            table[run] = token
    return table


def translate(proposal: list[int], table: dict[tuple[int, ...], int]) -> list[int]:
    """Longest matches from left to right; stops at a draft token that no target token begins."""
    out: list[int] = []
    at = 0
    while at < len(proposal):
        for end in range(len(proposal), at, -1):
            token = table.get(tuple(proposal[at:end]))
            if token is not None:
                out.append(token)
                at = end
                break
        else:
            break
    return out


@torch.no_grad()
def propose(model: Drafter, contexts: list[list[int]], k: int, dev: str) -> list[list[int]]:
    """Greedy continuation of every context by k tokens (no cache: simple, and fast enough)."""
    longest = max(len(c) for c in contexts)
    ids = torch.full((len(contexts), longest + k), BOS)
    for i, context in enumerate(contexts):
        ids[i, : len(context)] = torch.tensor(context)
    ids = ids.to(dev)
    length = torch.tensor([len(c) for c in contexts], device=dev)
    row = torch.arange(len(contexts), device=dev)
    for step in range(k):
        hidden = model(ids[:, : longest + step])[row, length + step - 1]
        logits: Tensor = hidden @ model.head().to(hidden.dtype).T
        ids[row, length + step] = logits.argmax(-1)
    return [ids[i, n : n + k].tolist() for i, n in enumerate(length.tolist())]


def block_efficiency(
    model: Drafter,
    records: list[dict[str, object]],
    alignment: Alignment,
    k: int,
    warm: bool,
    dev: str,
    rows: int = 256,
) -> dict[str, float]:
    """Target tokens per round, by task and over all records."""
    table = match_table(alignment, warm)
    tokens: dict[str, int] = {}
    rounds: dict[str, int] = {}
    for first in range(0, len(records), rows):
        part = records[first : first + rows]
        done = [0] * len(part)
        contexts = [[BOS, *alignment.expand(torch.tensor(r["prompt"]))[0].tolist()] for r in part]
        while True:
            live = [i for i, r in enumerate(part) if done[i] < len(r["answer"])]  # type: ignore[arg-type]
            if not live:
                break
            proposals = propose(model, [contexts[i] for i in live], k, dev)
            for i, proposal in zip(live, proposals, strict=True):
                task = str(part[i]["task"])
                answer: list[int] = part[i]["answer"]  # type: ignore[assignment]
                start = done[i]
                for token in translate(proposal, table):
                    if done[i] >= len(answer) or answer[done[i]] != token:
                        break
                    done[i] += 1
                done[i] = min(done[i] + 1, len(answer))
                for token in answer[start : done[i]]:
                    contexts[i] += alignment.segmentation(token)
                tokens[task] = tokens.get(task, 0) + done[i] - start
                rounds[task] = rounds.get(task, 0) + 1
    result = {task: tokens[task] / rounds[task] for task in tokens}
    result["all"] = sum(tokens.values()) / sum(rounds.values())
    return result


def load_drafter(folder: Path) -> Drafter:
    """A drafter in Hugging Face layout, float or int8 with block scales."""
    config = json.loads((folder / "config.json").read_text())
    shape = Shape(
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        ffn=config["intermediate_size"],
        heads=config["num_attention_heads"],
    )
    model = Drafter(shape)
    state = load_float(folder / "model.safetensors")
    model.load_state_dict({k.removeprefix("model."): v for k, v in state.items()})
    return model.eval()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--greedy", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--per-task", type=int, default=100)
    parser.add_argument("--k", type=int, nargs="+", default=[4])
    args = parser.parse_args()
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    surfaces = token_surfaces(read_gguf(args.gguf))
    alignment = build_alignment(surfaces, bare_tokenizer(args.tokenizer))
    model = load_drafter(args.drafter).to(dev)
    counted: dict[str, int] = {}
    records = []
    for line in args.greedy.read_text().splitlines():
        record = json.loads(line)
        counted[record["task"]] = counted.get(record["task"], 0) + 1
        if counted[record["task"]] <= args.per_task:
            records.append(record)
    for k in args.k:
        for warm in (True, False):
            result = block_efficiency(model, records, alignment, k, warm, dev)
            print(k, "warm" if warm else "direct", {t: round(v, 3) for t, v in result.items()})


if __name__ == "__main__":
    main()
