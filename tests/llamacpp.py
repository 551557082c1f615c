"""llama.cpp as an oracle: what it makes of GGUF files that tests write."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from needs import needs

xllamacpp = needs("xllamacpp")

# Types of tokens in GGUF files.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


@dataclass
class Vocabulary:
    """A tokenizer as GGUF files have it.

    Args:
        model: "gpt2": byte-level; "llama": SentencePiece.
        rules: merges, or scores.
        metadata: fields after ``tokenizer.``: texts, numbers of tokens and flags.
    """

    model: str
    tokens: list[str]
    types: list[int]
    rules: Sequence[str] | Sequence[float]
    metadata: dict[str, str | int | bool] = field(default_factory=dict)

    def add(self, token: str, kind: int, score: float = -1000.0) -> None:
        """Add a token, or change the type of one that there is."""
        if token in self.tokens:
            self.types[self.tokens.index(token)] = kind
            return
        self.tokens.append(token)
        self.types.append(kind)
        if self.model == "llama":
            self.rules = [*self.rules, score]  # type: ignore[list-item]

    def write(self, writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(self.model)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.model == "gpt2":
            writer.add_token_merges(self.rules)
        else:
            writer.add_token_scores(self.rules)
        kinds = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
        for key, value in self.metadata.items():
            kinds[type(value)](f"tokenizer.{key}", value)


def vocabulary(state: dict[str, Any], **metadata: str | int | bool) -> Vocabulary:
    """What a converter would make of a tokenizer.json."""
    model = state["model"]
    added = {each["id"]: each for each in state["added_tokens"]}
    ids = dict(model["vocab"]) | {each["content"]: index for index, each in added.items()}
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = {None: NORMAL, True: CONTROL, False: USER_DEFINED}
    types = [kinds[added[i]["special"] if i in added else None] for i in range(len(tokens))]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if not model.get("byte_fallback"):
        return Vocabulary("gpt2", tokens, types, merges, metadata)
    types[ids[model["unk_token"]]] = UNKNOWN
    for byte in range(256):
        types[ids[f"<0x{byte:02X}>"]] = BYTE
    # The sooner a piece is merged, the better its score.
    ranks: dict[str, int] = {}
    for merge in merges:
        ranks.setdefault(merge.replace(" ", ""), len(ranks))
    scores = [-float(ranks.get(token, 10**6)) for token in tokens]
    return Vocabulary("llama", tokens, types, scores, metadata)


def write_vocabulary(path: Path, words: Vocabulary) -> Path:
    """A GGUF file with a tokenizer, of which only that is worth anything."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    words.write(writer)
    shapes: dict[str, tuple[int, ...]]
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (32, 32))
    shapes |= dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), (32, 32))
    shapes |= {"attn_norm": (32,), "ffn_norm": (32,)}
    named = {f"blk.0.{name}": shape for name, shape in shapes.items()}
    named |= {"token_embd": (len(words.tokens), 32), "output_norm": (32,)}
    for name, shape in named.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@contextmanager
def served(path: Path) -> Iterator[str]:
    """The address of a server of a GGUF file."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx = 512
    parameters.n_parallel = 1
    parameters.verbosity = 0
    parameters.warmup = False
    parameters.cpuparams.n_threads = 1
    server = xllamacpp.Server(parameters)
    # One that is closed before its loop has begun never ends.
    ask(server.listening_address, "completion", prompt="a", n_predict=1)
    yield server.listening_address
    del server


def ask(address: str, place: str, **question: object) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{address}/{place}",
        json.dumps(question).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        read = json.load(answer)
    assert isinstance(read, dict)
    return read
