"""Order a drafter's vocabulary by how often the drafter proposes each token.

    python frequent_first.py --drafter folder --drafted 12288 [--seconds 60] --out folder

A token's frequency is its mean probability in documents that the drafter samples from itself. The
embedding's rows and the tokenizer's ids are put in this order (control tokens stay first), and
config.json gets ``drafted_tokens``: a head that computes only so many first rows misses little.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from export_int8 import load_float
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

STREAMS, LENGTH = 8192, 640
CONTROL = 3  # <unk>, <s>, </s>
EMBEDDING = "model.embed_tokens.weight"


@torch.no_grad()
def frequencies(folder: Path, seconds: float, device: str) -> Tensor:
    """Sum of each token's probability over the positions sampled within ``seconds``, [vocab]."""
    weights = {k: v.to(device) for k, v in load_float(folder / "model.safetensors").items()}
    config = json.loads((folder / "config.json").read_text("utf-8"))
    heads, size = config["num_attention_heads"], config["head_dim"]
    embedding, eps = weights[EMBEDDING], config["rms_norm_eps"]
    half = torch.arange(0, size, 2, device=device) / size
    angles = torch.outer(torch.arange(LENGTH, device=device), config["rope_theta"] ** -half)
    cos, sin = angles.cos(), angles.sin()

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weights[f"model.{name}.weight"], eps)

    def rotate(x: Tensor, t: int) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos[t] - b * sin[t], b * cos[t] + a * sin[t]], -1)

    mass = torch.zeros(len(embedding), dtype=torch.float64, device=device)
    layers = [f"layers.{i}" for i in range(config["num_hidden_layers"])]
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        shape = (STREAMS, heads, LENGTH, size)
        cache = {
            (layer, part): torch.zeros(shape, device=device, dtype=torch.bfloat16)
            for layer in layers
            for part in "kv"
        }
        token = torch.full((STREAMS,), config["bos_token_id"], device=device)
        for t in range(LENGTH):
            x = embedding[token]
            for layer in layers:
                w = {
                    name.rsplit(".", 2)[1][0]: value
                    for name, value in weights.items()
                    if name.startswith(f"model.{layer}.") and name.endswith("_proj.weight")
                }
                y = norm(x, f"{layer}.input_layernorm")
                q, k, v = (F.linear(y, w[p]).unflatten(-1, (heads, size)) for p in "qkv")
                cache[layer, "k"][:, :, t] = rotate(k, t)
                cache[layer, "v"][:, :, t] = v
                past = [cache[layer, part][:, :, : t + 1] for part in "kv"]
                query = rotate(q, t)[:, :, None].bfloat16()
                mixed = F.scaled_dot_product_attention(query, *past).flatten(1).float()
                x = x + F.linear(mixed, w["o"])
                y = norm(x, f"{layer}.post_attention_layernorm")
                x = x + F.linear(F.silu(F.linear(y, w["g"])) * F.linear(y, w["u"]), w["d"])
            row = torch.softmax(norm(x, "norm") @ embedding.T, -1)
            mass += row.sum(0, dtype=torch.float64)
            token = torch.multinomial(row, 1)[:, 0]
    return mass.cpu()


def reorder(folder: Path, mass: Tensor, drafted: int, out: Path) -> None:
    """Write the drafter in ``folder`` to ``out``, its tokens in the order of ``mass``."""
    mass = mass.clone()
    mass[:CONTROL] = float("inf")
    order = torch.argsort(mass, descending=True, stable=True)
    place = torch.argsort(order).tolist()
    out.mkdir(parents=True, exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    with safe_open(folder / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    for name in (EMBEDDING, f"{EMBEDDING}.scale"):
        tensors[name] = tensors[name][order].contiguous()
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = dict(
        sorted(((token, place[i]) for token, i in vocabulary.items()), key=lambda item: item[1])
    )
    config = json.loads((folder / "config.json").read_text("utf-8")) | {"drafted_tokens": drafted}
    save_file(tensors, out / "model.safetensors", metadata=metadata)
    for name, content in (("tokenizer.json", tokenizer), ("config.json", config)):
        text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
        (out / name).write_text(text, "utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafter", type=Path, required=True, help="as export_int8.py wrote it")
    parser.add_argument("--drafted", type=int, required=True, help="rows of the head")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mass = frequencies(args.drafter, args.seconds, device)
    share = mass.sort(descending=True).values[: args.drafted].sum() / mass.sum()
    print(f"the {args.drafted} most frequent tokens have {share:.2%} of the probability")
    reorder(args.drafter, mass, args.drafted, args.out)


if __name__ == "__main__":
    main()
