"""What the KV caches hold of a prompt is not read again, and no answer depends on it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXT, write_drafter, write_target

from omnidraft import GenerationOptions, SamplingParameters, Session
from omnidraft.runtime.models import LoadedModel, load_model

TEXTS = [TEXT[:150], TEXT[:150] + "And then?", TEXT[:90] + "!", TEXT[5:60], "What?"]
OPTIONS = [
    GenerationOptions(9, draft_length=0, raw=True),
    GenerationOptions(9, draft_length=4, draft_confidence=0.0, raw=True),
    GenerationOptions(9, raw=True),
    # These are to be repeated with the same seed.
    GenerationOptions(
        9, SamplingParameters(1.2), seed=3, draft_length=3, draft_confidence=0.0, raw=True
    ),
    GenerationOptions(9, SamplingParameters(0.8), seed=5, draft_length=0, raw=True),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, LoadedModel]:
    root = tmp_path_factory.mktemp("models")
    target = load_model(str(write_target(root / "target")), threads=1)
    drafter = load_model(str(write_drafter(root / "drafter")), threads=1, drafts=True)
    assert target.batch_invariant
    return target, drafter


@pytest.fixture(scope="module")
def expected(models: tuple[LoadedModel, LoadedModel]) -> dict[tuple[int, int], list[int]]:
    """What each prompt gives with each of the options, by a session that has seen nothing."""
    answers = {}
    for i, text in enumerate(TEXTS):
        for j, options in enumerate(OPTIONS):
            session = Session(*models)
            session.forget()
            answers[i, j] = session.generate(text, options).token_ids
    return answers


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(TEXTS) - 1),
            st.integers(0, len(OPTIONS) - 1),
            st.integers(1, 4) | st.none(),
        ),
        min_size=2,
        max_size=8,
    )
)
def test_answers_do_not_depend_on_what_was_asked_before(
    models: tuple[LoadedModel, LoadedModel],
    expected: dict[tuple[int, int], list[int]],
    asked: list[tuple[int, int, int | None]],
) -> None:
    session = Session(*models)
    for text, options, broken_off in asked:
        if broken_off is None:
            found = session.generate(TEXTS[text], OPTIONS[options]).token_ids
            assert found == expected[text, options]
            continue
        stream = session.stream(TEXTS[text], OPTIONS[options])
        begun = [piece.token for piece in islice(stream, broken_off) if piece.token is not None]
        stream.close()  # type: ignore[attr-defined]
        assert begun == expected[text, options][: len(begun)]


def test_a_common_beginning_is_read_once(models: tuple[LoadedModel, LoadedModel]) -> None:
    session, options = Session(*models), GenerationOptions(5, draft_length=2, raw=True)
    session.forget()
    assert session.generate(TEXTS[0], options).statistics.prompt_kept == 0
    again = session.generate(TEXTS[1], options).statistics
    assert again.prompt_tokens - 10 < again.prompt_kept < again.prompt_tokens
    # A conversation goes on: the answer's own tokens are kept, too.
    answer = session.generate(TEXTS[4], options)
    prompt = [*session.encode(TEXTS[4], raw=True), *answer.token_ids]
    longer = session.generate(prompt, options).statistics
    assert longer.prompt_kept >= len(prompt) - 2
    session.forget()
    assert session.generate(prompt, options).statistics.prompt_kept == 0


def test_a_target_whose_bits_depend_on_the_pass_reads_all(
    models: tuple[LoadedModel, LoadedModel],
) -> None:
    session = Session(replace(models[0], batch_invariant=False), models[1])
    for _ in range(2):
        answer = session.generate(TEXTS[0], OPTIONS[1])
        assert answer.statistics.prompt_kept == 0
