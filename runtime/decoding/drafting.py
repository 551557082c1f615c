"""The drafter's passes of a generation, and what they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import Fixed, Generation, Kept, Lookup, NgramCache, Pass, Policy, Speller
from omnidraft.runtime.decoding.constraint import DraftMask, MaskedPasses
from omnidraft.runtime.decoding.observed import StepObserver
from omnidraft.runtime.engines.model import CausalModel, KnowsTokens, tree_scorer
from omnidraft.runtime.statistics import Statistics


@dataclass(frozen=True)
class Drafting:
    """What speculation needs beside the target.

    Args:
        model: the drafter.
        cache: n-gram cache of the pair; it learns during generation.
        speller: translates target tokens into draft tokens.
        begin: draft tokens that open every context (beginning of text).
        policy: decides what each round drafts; it learns during generation.
        tree: draft trees; the target must score them. Else chains are drafted.
        scorer: of chains, from the drafter's largest probability, how likely the token drawn last
            is to be accepted, as the policy is told; None: as likely as that probability.
        lookup: finds what followed in the text before; it is emptied when a generation begins.
        keep: begin with what the drafter's KV cache holds of the context. Its logits may then
            differ in the last bits from those of an empty one, and so what is drafted.
    """

    model: CausalModel
    cache: NgramCache
    speller: Speller
    begin: tuple[int, ...] = ()
    policy: Policy = field(default_factory=lambda: Fixed(4))
    tree: bool = False
    scorer: Callable[[float], float] | None = None
    lookup: Lookup | None = None
    keep: bool = False

    @property
    def held(self) -> list[int]:
        """What the drafter's KV cache holds of before, as far as it may be used."""
        return list(self.model.held) if self.keep and isinstance(self.model, KnowsTokens) else []


def run_pass(model: CausalModel, wanted: Pass) -> NDArray[np.float32]:
    """A pass of a model, as a generation wants it.

    Returns:
        float32 ``[wanted.rows, vocabulary]``: see ``CausalModel.forward``.

    Raises:
        ContextOverflowError, ValueError, OmniDraftError: see ``CausalModel`` and ``ScoresTrees``.
    """
    if parents := wanted.parents:
        trees = tree_scorer(model)
        assert trees is not None, "no tree is drafted for a model that scores none"
        return trees.forward_tree(wanted.tokens, parents)
    if model.length != wanted.held:
        model.truncate(wanted.held)
    return model.forward(wanted.tokens, wanted.rows)


def keep(model: CausalModel, kept: Kept) -> None:
    """Leave in a KV cache what a round says."""
    if (length := kept.length) is not None:
        model.truncate(length)
    elif (path := kept.path) is not None:
        trees = tree_scorer(model)
        assert trees is not None
        trees.keep(path)


class Drafter:
    """Runs a drafter through the rounds of a generation.

    Args:
        stats: counts the time.
        steps: shown each step of a chain.
        mask: holds what is drafted to a form.

    Attributes:
        failure: why the drafter cannot go on; "" while it can.
        rows: of a tree, the drafter's rows by draft node, where steps are shown.
    """

    def __init__(
        self,
        drafting: Drafting,
        generation: Generation,
        stats: Statistics,
        steps: StepObserver | None = None,
        mask: DraftMask | None = None,
    ) -> None:
        self.failure = ""
        self.rows: dict[int, NDArray[np.float32]] = {}
        self._model = drafting.model
        self._generation = generation
        self._scorer = drafting.scorer
        self._tree = drafting.tree
        self._stats = stats
        self._steps = steps
        self._masked = MaskedPasses(mask) if mask is not None else None

    def draft(self, more: bool) -> None:
        """Draft in the round that began.

        Args:
            more: whether the round wants a pass at all.
        """
        self.rows = {}
        if self._steps is not None and not self._tree:
            self._steps.begin_round()
        if self._masked is not None:
            self._masked.begin()
        try:
            while more:
                self._pass()
                more = self._generation.draft_on()
        except Exception as error:
            # Engines' errors share no narrower class. What was drafted so far is proposed.
            self.failure = str(error) or type(error).__name__
            self._generation.fail()

    def keep(self, kept: Kept) -> None:
        """Leave in the drafter's KV cache what the round says."""
        if not self.failure:
            keep(self._model, kept)

    def _pass(self) -> None:
        generation, stats = self._generation, self._stats
        wanted = generation.drafter_pass
        before = perf_counter()
        logits = run_pass(self._model, wanted)
        if self._masked is not None:
            logits = self._masked.masked(logits, wanted)
        after = perf_counter()
        stats.draft_seconds += after - before
        generation.drafted(logits, after - before)
        stats.native_seconds += perf_counter() - after
        if self._tree:
            if self._steps is not None:
                for node, row in zip(generation.pass_nodes, logits, strict=True):
                    self.rows[node] = row.copy()
            return
        if self._steps is not None:
            self._steps.step(logits[0], generation.confidence)
        if self._scorer is not None and generation.drew:
            generation.score_as(self._scorer(generation.confidence))
