"""Sample conversations from the target on one GPU, with its top probabilities at each position.

    python sample.py --gguf target.gguf --out shard0.pt --seed 0 --seconds 240

Also writes the target's greedy answers to evaluation prompts (--prompts, --greedy-out).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random

import torch
from decode import Decoder, Plans
from prompts import opening
from target import (
    ANSWER_HEADER,
    IM_END,
    SYSTEM,
    USER_HEADER,
    load_tokenizer,
    load_weights,
    read_gguf,
)
from tokenizers import Tokenizer
from torch import Tensor

# The drafter's use is mostly greedy or cool; the user's side is always sampled at temperature 1.
ANSWER_TEMPERATURES = [0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.3, 0.5, 0.7, 0.9]
ANOTHER_TURN = 0.2
EVALUATION_FILES = ("gsm8k", "asdiv", "humaneval", "mt_bench", "xsum")
ANSWER_TOKENS = 128


def to_plans(texts: list[tuple[str, bool]], tokenizer: Tokenizer, device: str) -> Plans:
    """Tokenise openings (text, whole) behind the system prompt and the user's header."""
    full = [SYSTEM + USER_HEADER + t + (ANSWER_HEADER if whole else "") for t, whole in texts]
    rows = [e.ids for e in tokenizer.encode_batch_fast(full)]
    length = torch.tensor([len(row) for row in rows])
    table = torch.zeros(len(rows), int(length.max()), dtype=torch.long)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row)
    whole = torch.tensor([int(w) for _, w in texts])
    return Plans(table.to(device), length.to(device), whole.to(device))


def headers(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Tokens between a message's end and the next one: before an answer, before a user message."""
    answer = tokenizer.encode(ANSWER_HEADER).ids[1:]
    return answer, tokenizer.encode("\n" + USER_HEADER).ids


def greedy_answers(
    weights: dict[str, Tensor], tokenizer: Tokenizer, folder: Path, per_file: int, limit: int
) -> list[dict[str, object]]:
    """The target's greedy answers (at most 128 tokens) to evaluation prompts of <= limit tokens."""
    picked: list[tuple[str, str]] = []
    for name in EVALUATION_FILES:
        lines = (folder / f"{name}.jsonl").read_text().splitlines()
        prompts = [json.loads(line)["prompt"] for line in lines]
        fits = [p for p in prompts if len(tokenizer.encode(p).ids) <= limit - 40]
        picked += [(name, p) for p in fits[:per_file]]
    plans = to_plans([(p, True) for _, p in picked], tokenizer, "cuda")
    steps = int(plans.length.max()) + ANSWER_TOKENS
    decoder = Decoder(
        weights, plans, *headers(tokenizer), len(picked), steps + 8, [0.0], again=0.0, seed=0
    )
    decoder.record(steps)
    graph = decoder.capture()
    for _ in range(steps - 3):
        graph.replay()
    tokens = (decoder.log["token"].long() & 0xFFFF).T.tolist()
    records: list[dict[str, object]] = []
    for i, (name, _) in enumerate(picked):
        n = int(plans.length[i])
        answer = tokens[i][n : n + ANSWER_TOKENS]
        if IM_END in answer:
            answer = answer[: answer.index(IM_END) + 1]
        records.append({"task": name, "prompt": tokens[i][:n], "answer": answer})
    return records


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--rows", type=int, default=3072)
    parser.add_argument("--positions", type=int, default=768)
    parser.add_argument("--max-steps", type=int, default=30000)
    parser.add_argument("--openings", type=int, default=150_000)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--greedy-out", type=Path)
    parser.add_argument("--per-file", type=int, default=100)
    args = parser.parse_args()

    started = time.monotonic()
    reader = read_gguf(args.gguf)
    tokenizer = load_tokenizer(reader)
    weights = load_weights(reader, "cuda")
    print(f"target loaded {time.monotonic() - started:.1f} s", flush=True)
    if args.prompts is not None:
        records = greedy_answers(weights, tokenizer, args.prompts, args.per_file, 620)
        args.greedy_out.write_text("\n".join(json.dumps(r) for r in records))
        for r in records[:: max(1, args.per_file)]:
            print(r["task"], repr(tokenizer.decode(r["answer"])[:300]), flush=True)
        print(f"greedy answers {time.monotonic() - started:.1f} s", flush=True)
    if args.seconds <= 0:
        return

    rng = Random(args.seed)
    plans = to_plans([opening(rng) for _ in range(args.openings)], tokenizer, "cuda")
    print(f"openings {time.monotonic() - started:.1f} s", flush=True)
    decoder = Decoder(
        weights, plans, *headers(tokenizer), args.rows, args.positions,
        ANSWER_TEMPERATURES, ANOTHER_TURN, args.seed + 1,
    )  # fmt: skip
    decoder.record(args.max_steps)
    graph = decoder.capture()
    steps, begun = 3, time.monotonic()
    while steps < args.max_steps and time.monotonic() - begun < args.seconds:
        for _ in range(min(50, args.max_steps - steps)):
            graph.replay()
            steps += 1
        torch.cuda.synchronize()
        if steps % 500 < 50:
            took = time.monotonic() - begun
            print(f"{steps} steps, {steps * args.rows / took:.0f} tokens/s", flush=True)
    torch.save({k: v[:steps].cpu() for k, v in decoder.log.items()}, args.out)
    print(f"saved {steps * args.rows / 1e6:.1f}M tokens {time.monotonic() - started:.1f} s")
    log = (decoder.log["token"][:steps, :2].long() & 0xFFFF).T.tolist()
    for row in log:
        print("SAMPLE", tokenizer.decode(row[-700:], skip_special_tokens=False), flush=True)


if __name__ == "__main__":
    main()
