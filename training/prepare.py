"""Re-tokenise a quarter of the sampled text canonically, for training on other targets' sake too.

    python prepare.py --gguf target.gguf --tokenizer tokenizer.json --shards shard*.pt \
        --out canonical.pt
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from data import canonical_rows
from target import read_gguf, token_surfaces

CANONICAL_SHARE = 4  # one row in this many; the others are aligned by bytes (see train.py)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=32)
    args = parser.parse_args()
    texts = [s if s is not None else b"\n" for s in token_surfaces(read_gguf(args.gguf))]
    jobs = []
    for path in args.shards:
        log = torch.load(path, mmap=True)
        rows = slice(0, None, CANONICAL_SHARE)
        token = log["token"][:, rows].numpy().T.astype(np.uint16)
        kind, pos = log["kind"][:, rows].numpy().T, log["pos"][:, rows].numpy().T
        for i in range(0, len(token), 16):
            part = slice(i, i + 16)
            jobs.append((str(args.tokenizer), texts, token[part], kind[part], pos[part]))
    with ProcessPoolExecutor(args.workers) as pool:
        results = list(pool.map(canonical_rows, jobs))
    names = ("token", "weight", "length")
    columns = [np.concatenate(column) for column in zip(*results, strict=True)]
    torch.save({n: torch.from_numpy(c) for n, c in zip(names, columns, strict=True)}, args.out)
    print(f"canonical: {len(columns[0]) / 1e6:.1f}M draft tokens, {len(columns[2])} documents")


if __name__ == "__main__":
    main()
