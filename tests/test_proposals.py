"""What a session tells of the proposals of its rounds."""

from __future__ import annotations

import pytest

from omnidraft import GenerationOptions, LoadedModel, Session

PROMPT = "The quick brown fox and the quick brown"


@pytest.fixture(scope="module")
def session(models: tuple[LoadedModel, LoadedModel]) -> Session:
    return Session(*models)


@pytest.mark.parametrize("shape", [{"tree": 12}, {"draft_length": 6}, {"draft_length": 0}])
def test_what_stood_is_the_answer(session: Session, shape: dict[str, int]) -> None:
    options = GenerationOptions(40, draft_confidence=0, proposals=True, **shape)
    pieces = [piece for piece in session.stream(PROMPT, options) if piece.token is not None]
    assert session.last is not None
    stats = session.last.statistics
    begins = [i for i, piece in enumerate(pieces) if piece.proposal is not None]
    assert begins[0] == 0 and len(begins) == stats.rounds
    branches = proposed = accepted = 0
    for begin, end in zip(begins, [*begins[1:], len(pieces)], strict=True):
        proposal = pieces[begin].proposal
        assert proposal is not None
        proposed += len(proposal.tokens)
        accepted += len(proposal.accepted)
        branches += len(proposal.parents) - len(set(proposal.parents))
        assert all(-1 <= parent < i for i, parent in enumerate(proposal.parents))
        stood = [proposal.tokens[i] for i in proposal.accepted]
        assert stood == [piece.token for piece in pieces[begin : end - 1]]
        above = [-1, *proposal.accepted][: len(stood)]
        assert [proposal.parents[i] for i in proposal.accepted] == above
    assert (proposed, accepted) == (stats.proposed, stats.accepted)
    assert (branches > 0) == ("tree" in shape)
    assert (proposed > 0) == (shape != {"draft_length": 0})


def test_nothing_is_told_that_was_not_asked_for(session: Session) -> None:
    options = GenerationOptions(12, draft_length=4)
    assert all(piece.proposal is None for piece in session.stream(PROMPT, options))
