"""The drafter's half of a round that proposes a token tree."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from omnidraft._native import Judgement, TreeDraft, TreeProposal, TreeVerdict
from omnidraft.runtime.decoding.draft_side import MAX_LOOKUP, Drafting, RoundSeconds, judge_lookup
from omnidraft.runtime.decoding.reader import Reader
from omnidraft.runtime.decoding.translation import DraftContext
from omnidraft.runtime.decoding.tree_policy import MAX_LAYER, TreeOutcome
from omnidraft.runtime.engines.model import tree_scorer
from omnidraft.runtime.statistics import Statistics

_TEXT = 0
"""The draft node of the text."""
_ROOM = 48
"""Slots of the drafter's context that a round may need for its tree."""
_SIBLINGS = 16
"""Open draft nodes among which a drafter that scores no trees looks for one of its path."""


class TreeSide:
    """The drafter's half of the rounds of one generation, as ``DraftSide`` is for chains.

    The drafter grows a tree layer by layer: each of its passes runs over the most probable open
    draft nodes. A drafter that cannot score trees goes on along one path, whose nodes still have
    their siblings.

    Args:
        drafting: the drafter's side; its ``tree`` decides.
        stats: counts what is drafted.

    Attributes:
        failure: why the drafter cannot go on; "" while it can.
    """

    def __init__(self, drafting: Drafting, stats: Statistics) -> None:
        assert drafting.tree is not None
        self.failure = ""
        self._drafting = drafting
        self._policy = drafting.tree
        self._stats = stats
        self._draft = TreeDraft(drafting.cache)
        self._context = DraftContext(drafting.speller, drafting.cache, drafting.begin)
        self._reader = Reader(drafting.model, self._context.tokens, drafting.keep)
        self._trees = tree_scorer(drafting.model)
        # Of the round under way.
        self._target_length = 0
        self._passes: list[tuple[int, float]] = []  # tokens and seconds of the drafter's passes
        self._slots: dict[int, int] = {}  # of draft nodes, in the drafter's KV cache
        self._children: dict[tuple[int, int], int] = {}  # those, by parent and token
        self._found: list[int] = []
        self._match = 0

    def read(self, prompt: Sequence[int]) -> None:
        """Take in the prompt, before the first round."""
        self._stats.ngram_inserted += self._context.extend(prompt)
        if (lookup := self._drafting.lookup) is not None:
            lookup.clear()
            lookup.add(prompt)

    def propose(self, room: int, space: int, context: int) -> TreeProposal:
        """Begin a round: propose at most ``space`` nodes.

        Args:
            room: target tokens that are still wanted, less the one that every round adds.
            space: nodes that fit the target's KV cache.
            context: target tokens in the target's KV cache.
        """
        self._target_length = context
        self._passes, self._slots, self._children = [], {}, {}
        model, policy = self._drafting.model, self._policy
        self._reader.make_room(min(_ROOM, model.max_length // 4))
        self._look_up(room)
        found = len(self._found)
        limit = policy.begin(room, space, context, self._reader.unread, found)
        if not limit:
            return TreeProposal()
        self._draft.calibrate(policy.calibration)
        if self._found:
            self._draft.add_path(self._found[:limit], policy.found(self._match))
        if self._context.tokens:
            try:
                self._grow(limit)
            except Exception as error:
                # Engines' errors share no narrower class. What was drafted so far is proposed.
                self.failure = str(error) or type(error).__name__
        return self._draft.finish(policy.count(self._draft.gains(), limit))

    def end_round(
        self, proposal: TreeProposal, verdict: TreeVerdict, seconds: RoundSeconds
    ) -> None:
        """Learn what came of the round that ``propose`` began."""
        drafts = proposal.drafts
        self._refuse(proposal, verdict)
        spellings = [drafts[node] for node in verdict.path]
        self._stats.ngram_inserted += self._context.extend(verdict.tokens, spellings, said=True)
        self._keep()
        judged, right = judge_lookup(self._found, verdict.tokens)
        self._policy.observe(
            TreeOutcome(
                self._target_length,
                proposal,
                verdict,
                self._passes,
                seconds.target,
                seconds.other,
                self._match if self._found else 0,
                judged,
                right,
            )
        )
        if (lookup := self._drafting.lookup) is not None:
            lookup.add(verdict.tokens)

    def _look_up(self, room: int) -> None:
        self._found = []
        if (lookup := self._drafting.lookup) is not None:
            self._match = lookup.match_length
            self._found = lookup.propose(min(room, MAX_LOOKUP), 1)

    def _grow(self, limit: int) -> None:
        """Expand draft nodes, the most probable first, while the policy wants more."""
        model, draft, policy = self._drafting.model, self._draft, self._policy
        if not policy.layer([1.0], draft.gains(), limit):
            return
        feed = self._reader.catch_up(_ROOM)
        before = perf_counter()
        rows = model.forward(feed, rows=1)
        self._took(len(feed), before)
        self._reader.fed += feed
        draft.expand(_TEXT, rows[0])
        self._slots[_TEXT] = model.length - 1
        last = _TEXT
        while room := min(MAX_LAYER, model.max_length - model.length):
            if self._trees is not None:
                open_nodes = draft.frontier(room)
            else:  # on along the path that the KV cache holds
                open_nodes = [each for each in draft.frontier(_SIBLINGS) if each[2] == last][:1]
            chosen = open_nodes[
                : policy.layer([each[3] for each in open_nodes], draft.gains(), limit)
            ]
            if not chosen:
                return
            tokens = [token for _, token, _, _ in chosen]
            before = perf_counter()
            slot = model.length
            if self._trees is None:
                rows = model.forward(tokens)
            else:
                parents = [self._slots[parent] for _, _, parent, _ in chosen]
                rows = self._trees.forward_tree(tokens, parents)
            self._took(len(tokens), before)
            for place, (node, token, parent, _) in enumerate(chosen):
                self._slots[node] = slot + place
                self._children[parent, token] = node
                draft.expand(node, rows[place])
                last = node

    def _took(self, size: int, before: float) -> None:
        seconds = perf_counter() - before
        self._passes.append((size, seconds))
        self._stats.draft_seconds += seconds

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
            self._drafting.model.truncate(len(fed))
        elif len(self._passes) > 1:
            self._trees.keep(path)

    def _refuse(self, proposal: TreeProposal, verdict: TreeVerdict) -> None:
        """Judge the n-grams that the target passed by."""
        if Judgement.WRONG not in verdict.judgements:
            return
        columns = zip(verdict.judgements, proposal.drafts, proposal.depths, strict=True)
        for judgement, drafts, depth in columns:
            if judgement is Judgement.WRONG and len(drafts) > 1:
                self._context.refuse(drafts, verdict.tokens[depth])
