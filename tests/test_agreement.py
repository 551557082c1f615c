"""Families from text to text: transformers and llama.cpp, each with the file that it reads.

``python tests/test_agreement.py`` prints the table of docs/models.md.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import families as checkpoints
import numpy as np
import pytest
import tokenizers
from chat_families import CONVERSATIONS, FAMILIES, ChatFamily
from llamacpp import ask, served, vocabulary
from needs import needs
from numpy.typing import NDArray
from test_llamacpp import texts
from tiny import sentencepiece_tokenizer
from tokenizers import normalizers

from omnidraft.export.conversion import convert
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.text.tokenizer import Tokenizer

torch = needs("torch")
transformers = needs("transformers")

COUNT = 24
# llama.cpp keeps keys and values in 16 bits.
TIE = 0.01


@dataclass(frozen=True)
class Row:
    """A family: its checkpoint, its template, and the kind of its tokenizer."""

    title: str
    checkpoint: str
    chat: str
    tokenizer: str = "byte-level"


ROWS = [
    Row("Llama 3", "llama", "llama3"),
    Row("Llama with YaRN", "llama-yarn", "chatml"),
    Row("Mistral", "mistral-full", "mistral", "sentencepiece"),
    Row("Ministral-3", "ministral3", "mistral", "sentencepiece"),
    Row("Qwen2", "qwen2", "chatml"),
    Row("Qwen3", "qwen3", "qwen3"),
    Row("Gemma", "gemma", "gemma2", "gemma"),
    Row("Gemma-2", "gemma2", "gemma2", "gemma"),
    Row("Gemma-3", "gemma3", "gemma3", "gemma"),
    Row("Phi-3", "phi3", "phi3"),
    Row("Granite", "granite", "granite"),
    Row("SmolLM3", "smollm3", "smollm3"),
    Row("OLMo-2", "olmo2", "olmo2"),
    Row("EXAONE 4", "exaone4", "chatml"),
    Row("ERNIE 4.5", "ernie4_5", "chatml"),
    Row("Seed-OSS", "seed_oss", "chatml"),
]


@dataclass
class Agreement:
    """Of a file with who else reads it.

    Attributes:
        logits: largest difference from transformers.
        tokens: texts with the same ids.
        template: conversations with the same text and the same ids.
        greedy: tokens of an answer that are the same.
    """

    logits: float
    tokens: tuple[int, int]
    template: tuple[int, int]
    greedy: tuple[int, int]


def tokenizer_of(row: Row, family: ChatFamily) -> tokenizers.Tokenizer:
    if row.tokenizer == "byte-level":
        return family.tokenizer()
    made = sentencepiece_tokenizer()
    if row.tokenizer == "gemma":
        made.normalizer = normalizers.Replace(" ", "▁")
    made.add_special_tokens([tokenizers.AddedToken(n, normalized=False) for n in family.special])
    return made


def counted(pairs: Sequence[tuple[Any, Any]]) -> tuple[int, int]:
    return sum(ours == theirs for ours, theirs in pairs), len(pairs)


Conversation = tuple[str, list[int]]


def ours_of(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> Conversation | None:
    try:
        return tokenizer.apply_chat(messages), tokenizer.encode_chat(messages)
    except OmniDraftError:
        return None


def greedy_pairs(
    model: OnnxModel, prompt: list[int], theirs: Sequence[int], ends: frozenset[int]
) -> list[tuple[int, int]]:
    """Our next token and theirs along their answer; of a tie, theirs twice."""
    pairs = []
    row = model.forward(prompt, rows=1)[0]
    for token in theirs:
        row[list(ends)] = -np.inf
        best = int(row.argmax())
        pairs.append((token if row[best] - row[token] < TIE else best, token))
        row = model.forward([token], rows=1)[0]
    return pairs


def model_of(family: checkpoints.Family) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        family.model_type, **(checkpoints.SIZES | family.change), attn_implementation="eager"
    )
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def expected_logits(model: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    with torch.no_grad():
        logits: NDArray[np.float32] = model(torch.tensor(tokens[None])).logits[0].numpy()
    return logits


def agreements(row: Row, folder: Path) -> dict[str, Agreement]:
    """By format."""
    chat = FAMILIES[row.chat]
    backend = tokenizer_of(row, chat)
    checkpoint = checkpoints.FAMILIES[row.checkpoint]
    change = checkpoint.change | {"vocab_size": backend.get_vocab_size()}
    checkpoint = replace(checkpoint, change=change)
    reference = model_of(checkpoint)
    source = folder / "source"
    reference.save_pretrained(source)
    for name, content in {**chat.files(), "tokenizer.json": backend.to_str().encode()}.items():
        (source / name).write_bytes(content)
    words = vocabulary(json.loads(backend.to_str()))
    words.metadata |= {"ggml.pre": "gpt-2", "chat_template": chat.template}
    words.metadata |= {"ggml.add_bos_token": False}
    words.metadata |= {"ggml.add_space_prefix": row.tokenizer == "sentencepiece"}
    for key, token in chat.names.items():
        words.metadata[f"ggml.{key}_id"] = words.tokens.index(token)
    file = checkpoints.write_gguf(
        folder / "model.gguf",
        checkpoint,
        reference.config,
        {name: tensor.numpy() for name, tensor in reference.state_dict().items()},
        write_tokenizer=words.write,
    )
    return {
        "safetensors": _with_transformers(source, reference, folder / "a"),
        "GGUF": _with_llamacpp(file, reference, folder / "b"),
    }


def _agreement(
    source: Path,
    reference: Any,
    folder: Path,
    encode: Callable[[str], list[int]],
    converse: Callable[[list[dict[str, str]]], Conversation | None],
    answer: Callable[[list[int], frozenset[int]], list[int]],
) -> Agreement:
    convert(source, folder, "float32")
    model, tokenizer = OnnxModel(folder, threads=1), Tokenizer.load(source)
    tokens = np.random.default_rng(0).integers(3, tokenizer.vocab_size, checkpoints.LENGTH)
    expected: NDArray[np.float32] = expected_logits(reference, tokens)
    logits = float(np.abs(model.forward(tokens) - expected).max())
    model.truncate(0)
    # llama.cpp goes on with an answer that comes last.
    asked = [each for each in CONVERSATIONS.values() if each[-1]["role"] != "assistant"]
    prompt = tokenizer.encode_chat(CONVERSATIONS["user"])
    theirs = answer(prompt, tokenizer.eos_ids)
    return Agreement(
        logits,
        counted([(tokenizer.encode(text, add_bos=False), encode(text)) for text in texts(193)]),
        counted([(ours_of(tokenizer, each), converse(each)) for each in asked]),
        counted(greedy_pairs(model, prompt, theirs, tokenizer.eos_ids)),
    )


def _with_transformers(source: Path, reference: Any, folder: Path) -> Agreement:
    # AutoTokenizer splits text as it knows of a family, whatever the file says.
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(source)

    def converse(messages: list[dict[str, str]]) -> Conversation | None:
        given = {"conversation": messages, "add_generation_prompt": True}
        try:
            text: str = tokenizer.apply_chat_template(**given, tokenize=False)
        except Exception:  # as jinja2 and templates raise
            return None
        return text, list(tokenizer.apply_chat_template(**given)["input_ids"])

    def answer(prompt: list[int], ends: frozenset[int]) -> list[int]:
        ids = list(prompt)
        for _ in range(COUNT):
            row = expected_logits(reference, np.array(ids))[-1]
            row[list(ends)] = -np.inf
            ids.append(int(row.argmax()))
        return ids[len(prompt) :]

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    return _agreement(source, reference, folder, encode, converse, answer)


def _with_llamacpp(source: Path, reference: Any, folder: Path) -> Agreement:
    with served(source) as address:

        def encode(text: str) -> list[int]:
            question = {"content": text, "add_special": False, "parse_special": True}
            return list(ask(address, "tokenize", **question)["tokens"])

        tokenizer = Tokenizer.load(source)

        def converse(messages: list[dict[str, str]]) -> Conversation | None:
            if ours_of(tokenizer, messages) is None:
                return None  # it changes conversations that the template refuses
            text: str = ask(address, "apply-template", messages=messages)["prompt"]
            return text, encode(text)

        def answer(prompt: list[int], ends: frozenset[int]) -> list[int]:
            options = {"temperature": 0, "ignore_eos": True, "return_tokens": True}
            found = ask(address, "completion", prompt=prompt, n_predict=COUNT, **options)
            return list(found["tokens"])

        return _agreement(source, reference, folder, encode, converse, answer)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_families_agree_from_text_to_text(row: Row, tmp_path: Path) -> None:
    for form, found in agreements(row, tmp_path).items():
        assert found.logits < 1e-4, form
        assert found.greedy == (COUNT, COUNT), form
        for part in ("tokens", "template"):
            same, of = asdict(found)[part]
            assert same == of > 5, (form, part)


def table() -> str:
    lines = [
        "| family | file | compared with | logits | tokens | template | greedy text |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            for form, found in agreements(row, Path(folder)).items():
                counts = [f"{a} of {b}" for a, b in (found.tokens, found.template, found.greedy)]
                peer = "transformers" if form == "safetensors" else "llama.cpp"
                cells = [row.title, form, peer, f"{found.logits:.0e}", *counts]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
