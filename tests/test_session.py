"""A session over models that do not quite fit their tokenizers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import write_drafter, write_target

from omnidraft import GenerationOptions, SamplingParameters, Session
from omnidraft.runtime.errors import OmniDraftError, OptionError
from omnidraft.runtime.models import LoadedModel, load_model

EXTRA = "<|extra|>"


def with_extra_tokens(folder: Path, *, special: bool) -> LoadedModel:
    """Its tokenizer gets two more tokens, of which the embedding has no rows."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    width = json.loads((folder / "config.json").read_text())["vocab_size"]
    for i, name in enumerate((EXTRA, " answer is")):
        tokenizer["added_tokens"].append(
            {
                "id": width + i,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": special,
            }
        )
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return load_model(str(folder), threads=1)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("special", [False, True])
def test_a_prompt_with_a_token_that_the_model_lacks(
    tmp_path: Path, raw: bool, special: bool
) -> None:
    session = Session(with_extra_tokens(write_target(tmp_path / "target"), special=special))
    options = GenerationOptions(4, raw=raw)
    for prompt in (f"What {EXTRA} is it?", EXTRA, f"a{EXTRA}"):
        if special and not raw:  # a marker that somebody types is text
            assert len(session.generate(prompt, options).token_ids) == 4
            continue
        width = session.target.model.vocab_size
        with pytest.raises(OmniDraftError, match=rf"'<\|extra\|>'.*vocabulary ends at {width} "):
            session.generate(prompt, options)
    assert len(session.generate("What is it?", options).token_ids) == 4


def test_markers_of_a_raw_prompt_are_tokens_and_those_of_a_message_are_text(tmp_path: Path) -> None:
    session = Session(load_model(str(write_target(tmp_path / "target")), threads=1))
    by_hand = "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\n"
    assert session.encode(by_hand, raw=True) == session.encode("What is it?")
    assert session.encode(by_hand) != session.encode("What is it?")
    assert len(session.encode(by_hand)) > len(session.encode(by_hand, raw=True)) + 20


def test_a_raw_prompt_that_begins_with_the_first_token_has_it_once(tmp_path: Path) -> None:
    """As others, which the tokenizer puts in front, have it."""
    session = Session(load_model(str(write_drafter(tmp_path / "target")), threads=1))
    assert session.encode("<s>What", raw=True).count(1) == 1
    assert session.encode("What", raw=True)[0] == 1
    assert session.encode("<s>What").count(1) == 1  # one in front of the text "<s>"


@pytest.mark.parametrize("special", [False, True])
def test_a_drafter_that_lacks_tokens_of_its_tokenizer(tmp_path: Path, special: bool) -> None:
    """It spells the text with those that it has, and sees no special token that it has not."""
    target = with_extra_tokens(write_target(tmp_path / "target", padding=2), special=special)
    drafter = with_extra_tokens(write_drafter(tmp_path / "drafter"), special=special)
    options = GenerationOptions(20, draft_length=3, draft_confidence=0.0, raw=True)
    prompt = f"What is the answer? The answer is {EXTRA} 42."
    answer = Session(target, drafter).generate(prompt, options)
    assert answer.statistics.draft_tokens > 0
    plain = Session(target).generate(prompt, options)
    assert answer.token_ids == plain.token_ids


def test_a_drafter_whose_logits_are_no_numbers_is_left(tmp_path: Path) -> None:
    target = load_model(str(write_target(tmp_path / "target")), threads=1)
    folder = write_drafter(tmp_path / "drafter")
    weights = load_file(folder / "model.safetensors")
    # Finite, and too large for what is made of it.
    weights["model.layers.1.mlp.up_proj.weight"] *= 1e30
    weights["model.layers.1.mlp.gate_proj.weight"] *= 1e30
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    drafter = load_model(str(folder), threads=1, quantization="float32")
    options = GenerationOptions(16, draft_length=2, draft_confidence=0.0, raw=True)
    session = Session(target, drafter)
    with pytest.warns(UserWarning, match="drafter failed"):
        answer = session.generate("What is it?", options)
    assert answer.token_ids == Session(target).generate("What is it?", options).token_ids


@pytest.mark.parametrize(
    "sampling", [SamplingParameters(), SamplingParameters(1.3, top_k=40)], ids=["greedy", "sampled"]
)
def test_log_probabilities_are_the_targets(tmp_path: Path, sampling: SamplingParameters) -> None:
    target = load_model(str(write_target(tmp_path / "target")), threads=1)
    drafter = load_model(str(write_drafter(tmp_path / "drafter")), threads=1, drafts=True)
    options = GenerationOptions(
        16, sampling, seed=4, draft_length=3, draft_confidence=0.0, raw=True, logprobs=3
    )
    session = Session(target, drafter)
    answer = session.generate("What is the answer?", options)
    assert answer.statistics.proposed > 0 and answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    # What a pass over the whole text gives.
    prompt = session.encode("What is the answer?", raw=True)
    target.model.truncate(0)
    rows = target.model.forward([*prompt, *answer.token_ids[:-1]])[len(prompt) - 1 :]
    for row, token, found in zip(
        rows.astype(np.float64), answer.token_ids, answer.logprobs, strict=True
    ):
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert found.chosen == expected[token]
        likeliest = np.argsort(-row, kind="stable")[:3]
        assert [i for i, _ in found.top] == likeliest.tolist()
        assert [value for _, value in found.top] == expected[likeliest].tolist()
    plain = session.generate("What is the answer?", replace(options, draft_length=0))
    if sampling.greedy:
        assert plain.logprobs == answer.logprobs
    assert session.generate("What?", replace(options, logprobs=None)).logprobs is None
    none = session.generate("What?", replace(options, logprobs=0)).logprobs
    assert none is not None and all(each.top == () for each in none)


def test_a_message_with_a_role_that_nobody_knows(tmp_path: Path) -> None:
    session = Session(load_model(str(write_target(tmp_path / "target")), threads=1))
    with pytest.raises(OptionError, match=r"no message with the role 'robot'\. It takes: sys"):
        session.encode([{"role": "robot", "content": "Beep."}])
    assert session.encode([{"role": "tool", "content": "4"}])
