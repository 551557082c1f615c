"""Train the drafter on sampled text, by plain cross-entropy or by distillation, on one device.

    python train.py --gguf target.gguf --tokenizer tokenizer.json --shards shard*.pt \
        --canonical canonical.pt --seconds 360 --mode soft --out folder

Modes: "hard" learns the sampled token, "soft" the target's distribution (top 8, mapped to first
draft tokens), sharpened by --sharpen. Several modes can be compared on several GPUs at once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from align import BOS, Alignment, bare_tokenizer, build_alignment
from data import Documents, aligned_documents, batches, canonical_documents, cut_heads, join
from evaluate import block_efficiency, load_drafter
from grid import eight_bits, on_grid
from loss import soft_cross_entropy
from network import Drafter, Shape
from prepare import CANONICAL_SHARE
from safetensors.torch import save_file
from target import SYSTEM, USER_HEADER, load_tokenizer, read_gguf, token_surfaces

WARMUP = 0.02  # of the time


def load_documents(args: argparse.Namespace, alignment: Alignment, dev: str) -> Documents:
    """All shards' aligned documents and the canonical ones."""
    system, user = SYSTEM, SYSTEM + USER_HEADER
    target_tokenizer = load_tokenizer(read_gguf(args.gguf))
    heads = [
        int(alignment.count[torch.tensor(target_tokenizer.encode(t).ids)].sum())
        for t in (system, user)
    ]
    parts = []
    for path in args.shards:
        log = torch.load(path, mmap=True)
        rows = [i for i in range(log["token"].shape[1]) if i % CANONICAL_SHARE]
        for i in range(0, len(rows), 512):  # in pieces, to bound the memory of the expansion
            piece = {k: v[:, rows[i : i + 512]].to(dev) for k, v in log.items()}
            aligned = aligned_documents(piece, alignment.to(dev), hard=args.mode == "hard")
            parts.append(aligned if args.whole else cut_heads(aligned, *heads, seed=len(parts)))
    canonical = torch.load(args.canonical)
    draft_tokenizer = bare_tokenizer(args.tokenizer)
    plain = [t.replace("<|im_start|>", "\n").replace("<|im_end|>", "\n") for t in (system, user)]
    heads = [len(draft_tokenizer.encode(t, add_special_tokens=False).ids) for t in plain]
    documents = canonical_documents({k: v.to(dev) for k, v in canonical.items()})
    parts.append(documents if args.whole else cut_heads(documents, *heads, seed=len(parts)))
    return join(parts)


def optimizers(model: Drafter, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "layers" in n]
    others = [p for n, p in model.named_parameters() if not (p.dim() == 2 and "layers" in n)]
    return [
        torch.optim.Muon(
            matrices, lr=rate, weight_decay=0.02, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


@torch.no_grad()
def agreement(
    model: Drafter,
    records: list[dict[str, object]],
    alignment: Alignment,
    coarse: Callable[[torch.Tensor], torch.Tensor],
    dev: str,
) -> float:
    """Share of positions where 8-bit inputs leave the drafter's first choice as it is."""
    same = count = 0
    for record in records:
        target = torch.tensor([*record["prompt"], *record["answer"]])  # type: ignore[misc]
        ids = torch.cat([torch.tensor([BOS]), alignment.expand(target)[0]])[None].to(dev)
        choices = []
        for inputs in (lambda x: x, coarse):
            model.rounding.inputs = inputs
            choices.append((model(ids)[0] @ model.head().T).argmax(-1))
        same += int((choices[0] == choices[1]).sum())
        count += ids.numel()
    return same / count


def save(model: Drafter, folder: Path) -> None:
    """Hugging Face layout, written whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.shape.hf_config(), indent=2))
    temporary = folder / "model.safetensors.tmp"
    state = {k: v.contiguous() for k, v in model.hf_state().items()}
    save_file(state, temporary, metadata={"format": "pt"})
    temporary.rename(folder / "model.safetensors")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    parser.add_argument("--canonical", type=Path, required=True)
    parser.add_argument("--greedy", type=Path, help="greedy answers to measure block efficiency on")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--init", type=Path, help="drafter to go on from (default: a fresh one)")
    parser.add_argument("--whole", action="store_true", help="documents keep their heads")
    parser.add_argument("--mode", choices=("hard", "soft"), default="soft")
    parser.add_argument("--sharpen", type=float, default=1.0, help="target temperature")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--tokens", type=int, default=65536, help="per step")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--grid", action="store_true", help="weights on the grid of grid.py")
    parser.add_argument(
        "--coarse", type=float, default=0.0, help="share of the steps with inputs in 8 bits"
    )
    parser.add_argument("--seconds", type=float, default=360)
    parser.add_argument("--save-every", type=float, default=100)
    args = parser.parse_args()

    dev = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    begun = time.monotonic()
    surfaces = token_surfaces(read_gguf(args.gguf))
    host_alignment = build_alignment(surfaces, bare_tokenizer(args.tokenizer))
    documents = load_documents(args, host_alignment, dev)
    print(
        f"{len(documents.length)} documents, {len(documents.token) / 1e6:.1f}M draft tokens, "
        f"{time.monotonic() - begun:.1f} s",
        flush=True,
    )
    model = load_drafter(args.init) if args.init else Drafter(Shape(layers=args.layers))
    model = model.to(dev).train()
    if args.grid:
        model.rounding.weights = torch.compile(on_grid) if dev == "cuda" else on_grid
    coarse = torch.compile(eight_bits, dynamic=True) if dev == "cuda" else eight_bits
    exact = model.rounding.inputs
    optims = optimizers(model, args.rate)
    begun = saved = time.monotonic()
    seen, step, running = 0, 0, torch.zeros((), device=dev)
    for ids, where, label, share, weight, epoch in batches(
        documents, args.tokens, args.sharpen, seed=1
    ):
        done = (time.monotonic() - begun) / args.seconds
        if done >= 1:
            break
        for optim in optims:
            for group in optim.param_groups:
                group["lr"] = args.rate * min(done / WARMUP, (1 - done) / (1 - WARMUP))
        # 0.618: the coarse steps are spread evenly.
        model.rounding.inputs = coarse if step * 0.618034 % 1 < args.coarse else exact
        with torch.autocast(dev, torch.bfloat16):
            hidden = model(ids).flatten(0, 1)[where]
            if dev == "cuda":
                hidden = hidden.bfloat16()
            norm = weight.sum()
            loss = soft_cross_entropy(hidden, model.head(), label, share, weight / norm)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        running += loss.detach()
        seen += ids.numel()
        step += 1
        if step % 200 == 0:
            rate = seen / (time.monotonic() - begun)
            print(
                f"{args.mode} {args.sharpen} step {step} epoch {epoch:.2f} "
                f"loss {float(running) / 200:.4f} {rate:.0f} tokens/s",
                flush=True,
            )
            running.zero_()
        if time.monotonic() - saved > args.save_every:
            save(model, args.out)
            saved = time.monotonic()
    save(model, args.out)
    print(f"{args.mode} trained: {step} steps, {seen / 1e6:.0f}M tokens, epoch {epoch:.2f}")
    if args.greedy is not None:
        records = [json.loads(line) for line in args.greedy.read_text().splitlines()]
        model.eval()
        for name, inputs in (("exact", exact), ("coarse", coarse)):
            model.rounding.inputs = inputs
            for warm in (True, False):
                result = block_efficiency(model, records, host_alignment, 4, warm, dev)
                figures = {task: round(value, 3) for task, value in result.items()}
                print("RESULT k=4", name, "warm" if warm else "direct", json.dumps(figures))
        print("RESULT top-1 agreement", agreement(model, records, host_alignment, coarse, dev))


if __name__ == "__main__":
    main()
