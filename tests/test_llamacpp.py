"""A GGUF file gives here the tokens that llama.cpp makes of it."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers
from needs import needs
from tokenizers import decoders, models, pre_tokenizers, trainers

from omnidraft.runtime.text.gguf_pre_tokenizers import PRE_TOKENIZERS
from omnidraft.runtime.text.tokenizer import Tokenizer

xllamacpp = needs("xllamacpp")

# llama.cpp does not tell upper from lower case in these names' expressions, which are those of the
# models' own tokenizer.json.
CASED = {"tiny_aya", "cohere2moe", "youtu"}
WORDS = (
    "it's I'LL we'Ve don't X's hello HELLO World worldWide fooBar 1 12 123 1234 1234567 3.14 x1y2 "
    "café naïve ÄÖÜ größe ΑΒΓ αβγ Привет мир 你好,世界。 こんにちは カタカナ 한국어 ㄱㄴ ㄅㄆ "
    "مرحبا שלום ½ ² ٣٤ "
    "a+b==c <|x|> (a) [b] {c} $100 100% #tag @me a/b a\\b a_b ~`^ “quoted” … — 🎉 🇩🇪 // /* */"
)
SPACES = [" ", "  ", "   ", "     ", "\n", "\n\n", "\r\n", "\t", " \n ", "", ""]


def texts(count: int) -> list[str]:
    rng = random.Random(7)
    words = WORDS.split()
    made = [
        "".join(rng.choice(words) + rng.choice(SPACES) for _ in range(rng.randrange(1, 9)))
        for _ in range(count)
    ]
    return [*made, "", " ", "\n", "a" * 300, "x " * 70, "    leading", "trailing    "]


def grasping_tokenizer() -> tokenizers.Tokenizer:
    """A vocabulary whose tokens span words, digits and spaces, so that every cut is seen."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(3000), trainer)
    return tokenizer


def write(path: Path, state: dict[str, object], pre: str) -> Path:
    model = state["model"]
    assert isinstance(model, dict)
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, *[1] * (len(tokens) - 1)])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(False)
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (32, 32))
    shapes |= dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), (32, 32))
    shapes |= {"attn_norm": (32,), "ffn_norm": (32,)}
    named = {f"blk.0.{name}": shape for name, shape in shapes.items()}
    named |= {"token_embd": (len(tokens), 32), "output_norm": (32,)}
    for name, shape in named.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@contextmanager
def served(path: Path) -> Iterator[str]:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx = 512
    parameters.n_parallel = 1
    parameters.verbosity = 0
    parameters.warmup = False
    parameters.cpuparams.n_threads = 1
    server = xllamacpp.Server(parameters)
    yield server.listening_address
    del server


def ask(address: str, place: str, **question: object) -> dict[str, object]:
    request = urllib.request.Request(
        f"{address}/{place}",
        json.dumps(question).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        read = json.load(answer)
    assert isinstance(read, dict)
    return read


@pytest.fixture(scope="module")
def state() -> dict[str, object]:
    read = json.loads(grasping_tokenizer().to_str())
    assert isinstance(read, dict)
    return read


@pytest.mark.filterwarnings("ignore:.*does not say how its tokenizer splits text")
@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS.keys() - CASED))
def test_text_is_split_as_there(tmp_path: Path, state: dict[str, object], pre: str) -> None:
    path = write(tmp_path / "tiny.gguf", state, pre)
    tokenizer = Tokenizer.load(path)
    with served(path) as address:
        for text in texts(200):
            answer = ask(address, "tokenize", content=text, add_special=False)
            assert tokenizer.encode(text, add_bos=False) == answer["tokens"], repr(text)
