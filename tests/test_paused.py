"""Answers that are made in turns are those that are made one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXT, write_drafter

from omnidraft import GenerationOptions, LoadedModel, Session, load_model
from omnidraft._native import SamplingParameters
from omnidraft.export.learnable import learnable_drafter
from omnidraft.runtime.answer import Answer
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.decoding.kept_texts import KeptTexts
from omnidraft.runtime.engines.onnx import OnnxModel

WARM = SamplingParameters(temperature=0.9)
ASKED = [
    (TEXT[:90], GenerationOptions(20, draft_length=3, draft_confidence=0.0, raw=True)),
    (TEXT[:95], GenerationOptions(20, raw=True)),
    (TEXT[40:240], GenerationOptions(20, draft_length=0, raw=True)),
    (TEXT[::-1][:200], GenerationOptions(20, raw=True, sampling=WARM, seed=7)),
    ("What?", GenerationOptions(20, draft_length=0, raw=True, sampling=WARM, seed=8)),
]


class UnderWay:
    """An answer, read piece by piece."""

    def __init__(self, session: Session, number: int) -> None:
        self.decoders: list[SpeculativeDecoder] = []
        self.tokens: list[int] = []
        self.paused = self.ended = False
        self._pieces = session.stream(*ASKED[number], begun=self.decoders.append)

    def read(self, pieces: int) -> None:
        """Go on for so many pieces, and pause."""
        if self.paused:
            self.decoders[0].resume()
            self.paused = False
        for _ in range(pieces):
            if (piece := next(self._pieces, None)) is None:
                self.ended = True
                return
            if piece.token is not None:
                self.tokens.append(piece.token)
        self.paused = self.decoders[0].pause()
        assert self.paused

    def break_off(self) -> None:
        self._pieces.close()


def session_of(models: tuple[LoadedModel, LoadedModel], texts: int = 10_000) -> Session:
    model = models[0].model
    assert isinstance(model, OnnxModel)
    return Session(*models, kept=KeptTexts(model, model.kv_bytes_per_token * texts))


@pytest.fixture(scope="module")
def right(models: tuple[LoadedModel, LoadedModel]) -> list[Answer]:
    return [Session(*models).generate(*asked) for asked in ASKED]


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, len(ASKED) - 1), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=30),
    # Room for all texts, and for hardly more than the longest.
    st.sampled_from([10_000, 900]),
    st.integers(0, 4),
)
def test_an_answer_does_not_depend_on_pauses(
    models: tuple[LoadedModel, LoadedModel],
    right: list[Answer],
    numbers: list[int],
    turns: list[tuple[int, int]],
    texts: int,
    broken_off: int,
) -> None:
    session = session_of(models, texts)
    under_way = {i: UnderWay(session, number) for i, number in enumerate(numbers)}
    for i, pieces in turns:
        if i in under_way and not under_way[i].ended:
            under_way[i].read(pieces)
    if broken_off in under_way:
        under_way.pop(broken_off).break_off()
    for i, each in under_way.items():
        while not each.ended:
            each.read(2)
        answer = right[numbers[i]]
        assert each.tokens == answer.token_ids
        assert each.decoders[0].statistics.target_tokens == len(answer.token_ids)
        assert each.decoders[0].finish_reason == answer.finish_reason
    # Nobody holds the models any more.
    assert Session(*models, wait=0).generate(*ASKED[0]).token_ids == right[0].token_ids


def test_the_drafter_goes_on_where_it_was(
    models: tuple[LoadedModel, LoadedModel], tmp_path: Path
) -> None:
    """Though others used it with other weights: it drafts the same."""
    bundle = learnable_drafter(str(write_drafter(tmp_path / "drafter")))
    drafter = load_model(str(bundle), threads=1)
    model = drafter.model
    assert isinstance(model, OnnxModel)
    asked = ASKED[0]
    whole = Session(models[0], drafter).generate(*asked)
    session = session_of((models[0], drafter))
    one = UnderWay(session, 0)
    while not one.ended:
        one.read(1)
        assert model.adapter is None
        model.set_adapter({})
        model.forward(np.arange(5))
    stats = one.decoders[0].statistics
    assert one.tokens == whole.token_ids
    assert (stats.rounds, stats.accepted) == (whole.stats.rounds, whole.stats.accepted)


def pauses(session: Session, **options: object) -> bool:
    decoders: list[SpeculativeDecoder] = []
    stream = session.stream(*ASKED[0], begun=decoders.append)
    next(stream)
    paused = decoders[0].pause()
    stream.close()
    return paused


@pytest.mark.parametrize(
    ("session", "may"),
    [
        (session_of, True),
        (Session, False),
        (lambda models: session_of(models, 50), False),
    ],
    ids=["kept", "nothing kept", "too long"],
)
def test_what_could_not_go_on_is_not_paused(
    models: tuple[LoadedModel, LoadedModel],
    session: Callable[..., Session],
    may: bool,
) -> None:
    opened = Session(*models) if session is Session else session(models)
    assert pauses(opened) is may


def test_what_is_learned_from_is_not_paused(models: tuple[LoadedModel, LoadedModel]) -> None:
    target = models[0].model
    shown = {"observer": lambda round: None}, {}
    for observing in shown:
        decoder = SpeculativeDecoder(target, keep=True, kept=KeptTexts(target, 10**8), **observing)
        answer = decoder.generate([5, 6, 7], 5)
        next(answer)
        assert decoder.pause() is not bool(observing)
        answer.close()
