"""The drafter's half of a round that proposes a token tree."""

from __future__ import annotations

from functools import partial
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import (
    CostAware,
    Judged,
    Judgement,
    Origin,
    TreeDraft,
    TreeProposal,
    TreeVerdict,
)
from omnidraft.runtime.decoding.draft_side import Drafting, DraftSide, RoundSeconds
from omnidraft.runtime.decoding.observed import StepObserver
from omnidraft.runtime.engines.model import tree_scorer
from omnidraft.runtime.statistics import Statistics

_TEXT = 0
"""The draft node of the text."""
_SIBLINGS = 16
"""Open draft nodes among which a drafter that scores no trees looks for one of its path."""


class TreeSide(DraftSide):
    """The drafter's half of the rounds of one generation that draft trees; see ``ChainSide``.

    The drafter grows a tree layer by layer: each of its passes runs over the most probable open
    draft nodes. A drafter that cannot score trees goes on along one path, whose nodes still have
    their siblings.

    Args:
        observer: shown the steps on the path that ``drafted_path`` finds.
    """

    def __init__(
        self, drafting: Drafting, stats: Statistics, observer: StepObserver | None = None
    ) -> None:
        super().__init__(drafting, stats)
        self._observer = observer
        self._draft = TreeDraft(drafting.cache)
        self._trees = tree_scorer(drafting.model)
        # Of the round under way.
        self._slots: dict[int, int] = {}  # of draft nodes, in the drafter's KV cache
        self._children: dict[tuple[int, int], int] = {}  # those, by parent and token
        self._rows: dict[int, NDArray[np.float32]] = {}  # of the drafter, if they are shown

    def propose(self, room: int, space: int, context: int) -> TreeProposal:
        """Begin a round: propose at most ``space`` nodes.

        Args:
            room: target tokens that are still wanted, less the one that every round adds.
            space: nodes that fit the target's KV cache.
            context: target tokens in the target's KV cache.
        """
        self._slots, self._children, self._rows = {}, {}, {}
        policy = self._policy
        limit = self._begin(room, space, context)
        if not limit:
            return TreeProposal()
        self._draft.calibrate(policy.calibration)
        if self._found:
            self._draft.add_path(self._found[:limit], policy.found(self._match))
        if self._context.tokens:
            try:
                self._grow(limit)
            except Exception as error:
                # Engines' errors share no narrower class.
                self._fail(error)
        return self._draft.finish(policy.count(self._draft.gains(), limit))

    def end_round(
        self, proposal: TreeProposal, verdict: TreeVerdict, seconds: RoundSeconds
    ) -> None:
        """Learn what came of the round that ``propose`` began."""
        drafts = proposal.drafts
        judged = []
        for judgement, origin, spelling, depth, rank, confidence in zip(
            verdict.judgements,
            proposal.origins,
            drafts,
            proposal.depths,
            proposal.ranks,
            proposal.confidences,
            strict=True,
        ):
            if judgement is Judgement.NONE or origin is Origin.LOOKUP:
                continue
            right = judgement is Judgement.RIGHT
            judged.append(Judged(rank, confidence, right))
            if not right and len(spelling) > 1:
                self._context.refuse(spelling, verdict.tokens[depth])
        spellings = [drafts[node] for node in verdict.path]
        self._end(len(proposal) + 1, verdict, spellings, judged, seconds)
        self._keep()

    def drafted_path(self, proposal: TreeProposal, verdict: TreeVerdict) -> tuple[list[int], int]:
        """The drafted nodes that the target walked down, and on where it left the draft.

        There the path goes on by the most probable node, as a chain would have. It ends before a
        node that was looked up, and before one whose draft tokens the drafter never read in a row.

        Returns:
            The nodes, and how many of them stand.
        """
        drafts, parents = proposal.drafts, proposal.parents
        ran: list[int] = []  # draft nodes whose rows tell what the drafter would say next
        place = _TEXT if _TEXT in self._slots else None

        def follow(node: int) -> bool:
            nonlocal place
            read, at = [], place
            for token in drafts[node]:
                if at is None:
                    return False
                read.append(at)
                at = self._children.get((at, token))
            ran.extend(read)
            if read:
                place = at
            return bool(read)

        nodes = list(takewhile(follow, verdict.path))
        accepted = len(nodes)
        last = fork = nodes[-1] if nodes else -1
        # Parents come before their children, and the most probable child first.
        for node in range(fork + 1, len(proposal)):
            refused = last != fork or verdict.judgements[node] is Judgement.WRONG
            if parents[node] == last and refused and follow(node):
                nodes.append(node)
                last = node
        if self._observer is not None:
            self._observer.begin_round()
            for draft_node in ran if place is None else [*ran, place]:
                row = self._rows[draft_node]
                self._observer.step(row, float(1 / np.exp(row - row.max()).sum()))
        return nodes, accepted

    def _grow(self, limit: int) -> None:
        """Expand draft nodes, the most probable first, while the policy wants more."""
        model, draft, policy = self._model, self._draft, self._policy
        if not policy.layer([1.0], draft.gains(), limit):
            return
        row = self._catch_up()
        self._expand(_TEXT, row, model.length - 1)
        last = _TEXT
        while room := min(CostAware.MAX_LAYER, model.max_length - model.length):
            if self._trees is not None:
                open_nodes = draft.frontier(room)
            else:  # on along the path that the KV cache holds
                open_nodes = [each for each in draft.frontier(_SIBLINGS) if each[2] == last][:1]
            chosen = open_nodes[
                : policy.layer([each[3] for each in open_nodes], draft.gains(), limit)
            ]
            if not chosen:
                return
            slot = model.length
            run = model.forward
            if self._trees is not None:
                parents = [self._slots[parent] for _, _, parent, _ in chosen]
                run = partial(self._trees.forward_tree, parents=parents)
            rows = self._forward([token for _, token, _, _ in chosen], run)
            for place, (node, token, parent, _) in enumerate(chosen):
                self._expand(node, rows[place], slot + place)
                self._children[parent, token] = node
                last = node

    def _expand(self, node: int, row: NDArray[np.float32], slot: int) -> None:
        """Continue a draft node by the drafter's row after it."""
        self._draft.expand(node, row)
        self._slots[node] = slot
        if self._observer is not None:
            self._rows[node] = row.copy()

    def _keep(self) -> None:
        """Keep what the drafter's KV cache holds of the context as it is now."""
        if not self._passes:
            return
        fed, node, path = self._reader.fed, _TEXT, []
        for token in self._context.tokens[len(fed) :]:
            child = self._children.get((node, token))
            if child is None:
                break
            path.append(self._slots[child])
            fed.append(token)
            node = child
        if self._trees is None:
            self._model.truncate(len(fed))
        elif len(self._passes) > 1:
            self._trees.keep(path)
