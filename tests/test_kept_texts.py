"""Conversations that alternate are not read again, and no answer depends on it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXT

from omnidraft import GenerationOptions, Session
from omnidraft.runtime.decoding.kept_texts import KeptTexts
from omnidraft.runtime.engines.onnx import OnnxModel
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.profiling.recording import RecordedModel

OPTIONS = GenerationOptions(6, draft_length=3, draft_confidence=0.0, raw=True)
TEXTS = [
    *(TEXT[:180] + end for end in ("One?", "Two?", "One? More")),
    *(TEXT[60:200] + end for end in ("", " on and on")),
    TEXT[::-1][:120],
    "What?",
]


@pytest.fixture(scope="module")
def right(models: tuple[LoadedModel, LoadedModel]) -> list[list[int]]:
    answers = []
    for text in TEXTS:
        session = Session(*models)
        session.forget()
        answers.append(session.generate(text, OPTIONS).token_ids)
    return answers


def bytes_of(model: OnnxModel, tokens: int) -> int:
    return model.kv_bytes_per_token * (tokens + 48)  # in whole tiles


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, len(TEXTS) - 1), st.booleans()), max_size=14),
    st.sampled_from([0, 20, 150, 300, 10_000]),
)
def test_no_answer_depends_on_what_is_kept(
    models: tuple[LoadedModel, LoadedModel],
    right: list[list[int]],
    asked: list[tuple[int, bool]],
    most: int,
) -> None:
    model = models[0].model
    assert isinstance(model, OnnxModel)
    kept = KeptTexts(model, bytes_of(model, most) if most else 0)
    session = Session(*models, kept=kept)
    for number, broken_off in asked:
        if broken_off:
            stream = session.stream(TEXTS[number], OPTIONS)
            assert [next(stream).token, next(stream).token] == right[number][:2]
            stream.close()
        else:
            assert session.generate(TEXTS[number], OPTIONS).token_ids == right[number]
        assert kept.nbytes <= (bytes_of(model, most) if most else 0)


def read(session: Session, tokens: list[int]) -> tuple[int, list[int]]:
    """How many tokens of a prompt had to be read, and the whole text after its answer."""
    answer = session.generate(tokens, OPTIONS)
    stats = answer.stats
    return stats.prompt_tokens - stats.prompt_kept, [*tokens, *answer.token_ids]


def test_conversations_that_alternate_read_what_is_new(
    models: tuple[LoadedModel, LoadedModel],
) -> None:
    kept = KeptTexts(models[0].model, 100_000_000)
    session = Session(*models, kept=kept)
    session.forget()
    texts = [session.encode(text, raw=True)[:60] for text in (TEXT, TEXT[60:], TEXT[::-1])]
    for turn in range(3):
        for i, text in enumerate(texts):
            count, texts[i] = read(session, [*text, 5 + i, 6, 7])
            # The last token of an answer was not read, nor was what came behind it.
            assert count > 55 if not turn else count <= 4
    assert len(kept) == 2  # the model holds the third


def test_a_shared_beginning_is_found_by_many(models: tuple[LoadedModel, LoadedModel]) -> None:
    session = Session(*models, kept=KeptTexts(models[0].model, 100_000_000))
    session.forget()
    system = session.encode(TEXT, raw=True)[:100]
    other = session.encode(TEXT[::-1], raw=True)[:100]
    read(session, [*system, 9, 9])
    for token in range(20, 24):
        read(session, other)  # the model holds something else
        count, _ = read(session, [*system, token, token])
        assert count == 2


def test_what_is_used_least_recently_goes(models: tuple[LoadedModel, LoadedModel]) -> None:
    model = models[0].model
    assert isinstance(model, OnnxModel)
    kept = KeptTexts(model, 2 * bytes_of(model, 70))
    session = Session(models[0], kept=kept)
    session.forget()
    texts = [[10 + i] * 64 for i in range(4)]
    for text in texts:
        read(session, text)
    assert len(kept) == 2  # of the first three; the model holds the fourth
    assert read(session, texts[1])[0] <= 2
    assert read(session, texts[0])[0] > 50
    # A text that is larger than all that may be kept displaces none.
    small = KeptTexts(model, 10)
    session = Session(models[0], kept=small)
    read(session, texts[0])
    read(session, texts[1])
    assert len(small) == 0


def test_a_recorded_model_copies_its_models_cache(models: tuple[LoadedModel, LoadedModel]) -> None:
    model = models[0].model
    recorded = RecordedModel(model)
    model.truncate(0)
    expected = recorded.forward([1, 2, 3]).copy()
    copy = recorded.copy_cache()
    assert copy is not None and list(copy.tokens) == [1, 2, 3]
    recorded.truncate(0)
    recorded.forward([4, 5])
    recorded.put_cache(copy)
    recorded.truncate(2)
    np.testing.assert_array_equal(recorded.forward([3]), expected[-1:])
