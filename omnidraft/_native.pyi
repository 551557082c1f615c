"""The native core: vocabularies, the n-gram cache and its trie, drafting and verification."""

import enum
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import ClassVar, overload

import numpy as np
from numpy.typing import NDArray

class MappingRule(enum.IntEnum):
    """When a draft token and a target token are a direct pair."""

    BYTES = 0
    """Equal surface bytes."""
    PAPER = 1
    """Equal token strings after ▁ → Ġ and <0x0A> → Ċ (OmniDraft, arXiv 2507.02659, Table 8)."""

class Eviction(enum.IntEnum):
    LRU = 0
    LFU = 1

class Verification(enum.IntEnum):
    GREEDY = 0
    EXACT = 1
    PAPER = 2

class Origin(enum.IntEnum):
    """How an emitted token came about."""

    DIRECT = 0
    MERGED = 1
    CORRECTED = 2
    FREE = 3
    LOOKUP = 4
    """Proposed by ``Draft.propose``, and accepted."""

class CacheDamagedError(ValueError): ...
class CacheMismatchError(ValueError): ...

class Vocabulary:
    """Token id → surface bytes.

    Args:
        surfaces: bytes of each token; None for a special token, which has no surface.
        pieces: the tokenizer's own strings; needed for ``MappingRule.PAPER`` only.
        byte_tokens: ids of byte-fallback tokens such as ``<0x41>``.

    Raises:
        ValueError: no tokens, or ``pieces`` of another length.
    """

    def __init__(
        self,
        surfaces: Sequence[bytes | None],
        pieces: Sequence[str] = ...,
        byte_tokens: Sequence[int] = ...,
    ) -> None: ...
    def __len__(self) -> int: ...
    def surface(self, token: int) -> bytes | None: ...
    @property
    def fingerprint(self) -> int: ...

class VocabularyPair:
    """The direct mapping between a drafter's and a target's vocabulary."""

    def __init__(
        self, drafter: Vocabulary, target: Vocabulary, rule: MappingRule = ...
    ) -> None: ...
    @property
    def direct_count(self) -> int: ...
    @property
    def rule(self) -> MappingRule: ...
    @property
    def fingerprint(self) -> int: ...
    def to_target(self, draft: int) -> int:
        """The target token a draft token stands for, or -1."""
    def to_draft(self, target: int) -> int:
        """The draft token that spells a target token, or -1."""

class NgramCache:
    """Target tokens without a direct counterpart and the draft tokens that spell them.

    Args:
        max_entries: bound on n-grams.
        max_bytes: bound on the memory of all structures. Two bits per token of the drafter's
            vocabulary are always needed; with less than that the cache stays empty.
        eviction: which n-gram goes when a bound is reached.
    """

    def __init__(
        self,
        pair: VocabularyPair,
        max_entries: int = ...,
        max_bytes: int = ...,
        eviction: Eviction = ...,
    ) -> None: ...
    def observe(self, target: int, drafts: Sequence[int]) -> bool:
        """Insert the n-gram or count a use of it; True when it was inserted.

        Refuses (False) what cannot be an n-gram of this pair: fewer than 2 or more than 127 draft
        tokens, a target token with a direct counterpart, other bytes.

        Raises:
            IndexError: a token id outside its vocabulary.
        """
    def judge(self, drafts: Sequence[int], merged: bool) -> None:
        """What the target said where it could choose between an n-gram and its beginning.

        An n-gram that was refused twice more than it was said leaves the trie until it is said
        again. Unknown ones are ignored.

        Args:
            merged: it said the n-gram, not a shorter token of the same draft tokens' beginning.
        """
    def __len__(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    @property
    def version(self) -> int:
        """Changes whenever the trie changes."""
    def ngrams(self) -> list[tuple[int, list[int], int, bool]]:
        """(target token, draft tokens, uses, whether it is the spelling that sampling uses)."""
    def to_bytes(self) -> bytes:
        """The n-grams in order of their last use, with a checksum; not the limits."""
    @staticmethod
    def from_bytes(
        data: bytes,
        pair: VocabularyPair,
        max_entries: int = ...,
        max_bytes: int = ...,
        eviction: Eviction = ...,
    ) -> NgramCache:
        """The cache that ``to_bytes`` gave, as if each n-gram were observed anew.

        Raises:
            CacheDamagedError: truncated, altered, or not a cache.
            CacheMismatchError: another pair's, or of another format version.
        """
    def save(self, path: str | PathLike[str]) -> None:
        """``to_bytes`` in a file: write to a temporary name, flush, rename.

        Raises:
            OSError: the file cannot be written.
        """
    @staticmethod
    def load(
        path: str | PathLike[str],
        pair: VocabularyPair,
        max_entries: int = ...,
        max_bytes: int = ...,
        eviction: Eviction = ...,
    ) -> NgramCache:
        """Read a saved cache.

        Raises:
            CacheDamagedError, CacheMismatchError: as ``from_bytes``.
            OSError: the file cannot be read.
        """

class Chance:
    """Where drafting and verification take their random decisions from."""

class Generator(Chance):
    """xoshiro256** seeded through SplitMix64: the same stream on every platform."""

    def __init__(self, seed: int) -> None: ...
    def next(self) -> int: ...
    def uniform(self) -> float: ...
    def draw(self, weights: Sequence[float]) -> int: ...

class ScriptedChance(Chance):
    """Replays choices and records the probabilities of each decision, for enumeration tests."""

    def __init__(self, script: Sequence[int]) -> None: ...
    @property
    def choices(self) -> list[int]: ...
    @property
    def probabilities(self) -> list[list[float]]: ...

class SamplingParameters:
    """Applied in this order: repetition penalty, temperature, top-k, top-p, min-p.

    Args:
        temperature: 0 is greedy decoding.
        top_k: keep the k most probable tokens; 0 is off.
        top_p: keep the smallest set of tokens with this much probability; 1 is off.
        min_p: keep tokens at least this probable relative to the most probable; 0 is off.
        repetition_penalty: divides positive logits of tokens seen, multiplies negative ones.

    Raises:
        ValueError: a parameter out of its range; the message names it.
    """

    def __init__(
        self,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
    ) -> None: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def greedy(self) -> bool: ...

class History:
    """The target tokens of a sequence so far, for the repetition penalty."""

    def __init__(self, vocabulary_size: int) -> None: ...
    def add(self, tokens: Sequence[int]) -> None:
        """Raises IndexError for a token outside the vocabulary."""

def shape(
    logits: NDArray[np.float32], sampling: SamplingParameters, history: History
) -> NDArray[np.float64]:
    """Probabilities float64 [vocabulary] that sampling parameters make of logits.

    Tokens as probable as the least probable one that stays, stay too.

    Raises:
        ValueError: logits that are not numbers, a temperature of 0, or a history of another size.
    """

def uniform_at(seed: int, position: int) -> float:
    """The number in [0, 1) that belongs to a place; nothing is drawn before or after it.

    The same on every platform, for all 64-bit seeds and positions.
    """

def quantile(
    logits: NDArray[np.float32], sampling: SamplingParameters, history: History, uniform: float
) -> int:
    """The token where the cumulative distribution of ``shape`` reaches ``uniform``.

    Raises:
        ValueError: as ``shape``, or a ``uniform`` outside [0, 1).
    """

class Proposal:
    """Proposed target tokens and how every draft token was drawn."""

    @property
    def drafts(self) -> list[int]: ...
    @property
    def tokens(self) -> list[int]:
        """The target tokens to score, in order."""
    @property
    def draft_counts(self) -> list[int]:
        """How many draft tokens spell each of ``tokens``; 0 for one from ``Draft.propose``."""

class Draft:
    """Drafting through the trie, one draft token at a time.

    Raises:
        ValueError: ``temperature`` is not positive and verification is not greedy.
    """

    def __init__(
        self, cache: NgramCache, verification: Verification, temperature: float = 1.0
    ) -> None: ...
    def propose(self, tokens: Sequence[int]) -> None:
        """Propose target tokens before anything is drafted in this round, a ``Lookup``'s say.

        Any of the vocabulary, in the trie or not, special ones too. Verification takes them as
        certain (q = 1), which is exact whenever they do not depend on the target's choices to come.
        ``step`` may draft further ones, as continuing them, or ``finish`` follow at once.

        Raises:
            IndexError: a token outside the target's vocabulary.
            ValueError: called after ``step`` has returned a draft token.
        """
    def step(self, logits: NDArray[np.float32], chance: Chance) -> int:
        """The next draft token given the drafter's logits float32 [vocabulary], or -1.

        -1 means that nothing the trie knows can follow: the proposal ends there.

        Raises:
            ValueError: logits of another size, or that are not numbers, or a cache that changed
                since the first step.
        """
    @property
    def confidence(self) -> float:
        """How sure the drafter was at the last step: its most probable token's probability.

        Greedy: with a relative error below 2e-4.
        """
    def finish(self) -> Proposal:
        """The proposal; the object is ready for the next round.

        Raises:
            ValueError: a cache that changed since the first step; the proposal is lost then.
        """

class Lookup:
    """Drafting without a drafter: what came after the last time that the text ended as it does now.

    Costs a microsecond a token. Add the prompt and every emitted token; keep it for further prompts
    to find what was said before, or ``clear`` it.

    Args:
        vocabulary_size: of the target.
        max_tokens: tokens kept, 2 to 2^31; 12 to 24 bytes each beside 4 bytes a token of the
            vocabulary. When these are full, the older half goes.

    Raises:
        ValueError: ``max_tokens`` outside its range.
    """

    def __init__(self, vocabulary_size: int, max_tokens: int = 65_536) -> None: ...
    def add(self, tokens: Sequence[int]) -> None:
        """Raises IndexError for a token outside the vocabulary; nothing is added then."""
    def propose(self, max_tokens: int, min_match: int = 2) -> list[int]:
        """At most ``max_tokens`` target tokens that followed the longest earlier occurrence.

        Of several of this length the most recent one. Where its continuation reaches the end of the
        text it goes on with itself, as a loop does. Empty when ``match_length`` is less than
        ``min_match``, or 0.
        """
    @property
    def match_length(self) -> int:
        """How many tokens at the end of the text occurred before, in this order.

        Only the 128 most recent places that end in the last two tokens are looked at.
        """
    def __len__(self) -> int:
        """Tokens kept."""
    @property
    def memory_bytes(self) -> int: ...
    def clear(self) -> None:
        """Forget everything."""

class Verdict:
    """What a round emits."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def origins(self) -> list[Origin]: ...
    @property
    def proposed(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def accepted_drafts(self) -> int: ...
    @property
    def merged(self) -> int: ...
    @property
    def merged_accepted(self) -> int: ...

@overload
def end_round(proposal: Proposal, verdict: Verdict, end: int) -> None:
    """End a round at an end-of-text token that it accepted: the ``end``-th of its tokens.

    Both objects are afterwards those of a round that proposed the tokens before it and took it as
    the token that ends every round: ``len(tokens)`` is ``accepted + 1`` as ever. Of a tree the
    proposal stays as it is; the verdict is that of one without this token's node and what stands
    behind it.

    Raises:
        IndexError: that token was not an accepted one.
    """

@overload
def end_round(proposal: TreeProposal, verdict: TreeVerdict, end: int) -> None: ...

class Verifier:
    """Decides which proposed tokens stand (method: exact, paper or greedy, as proposed)."""

    def __init__(self, cache: NgramCache) -> None: ...
    def verify(
        self,
        proposal: Proposal,
        logits: NDArray[np.float32],
        sampling: SamplingParameters,
        history: History,
        chance: Chance,
    ) -> Verdict:
        """Verify ``proposal`` against the target's logits.

        Args:
            logits: float32 [len(proposal.tokens) + 1, target vocabulary], C-contiguous; row 0
                follows the last token of the sequence, row i the i-th proposed token.
            history: the emitted tokens are added to it; an error leaves it as it was.

        Raises:
            ValueError: logits of another shape, NaN, or a cache that changed since drafting.
        """
    def follow(
        self,
        proposal: Proposal,
        logits: NDArray[np.float32],
        sampling: SamplingParameters,
        history: History,
        seed: int,
        position: int,
    ) -> Verdict:
        """Let what a greedy proposal holds stand while plain decoding takes the same tokens.

        Greedy sampling takes the argmax. Any other takes the inverse of the cumulative distribution
        at ``uniform_at(seed, place)``, where the first token's place in the answer is ``position``.

        Raises:
            ValueError: as ``verify``, or the proposal is not a greedy one.
        """

class Judgement(enum.IntEnum):
    """What a walk said of a proposed node; only children of accepted nodes are judged."""

    NONE = 0
    WRONG = 1
    RIGHT = 2

class TreeProposal:
    """A tree of target tokens to score.

    Parents come before their children, depth first, and the most probable child first: the most
    probable path is often a run of rows.
    """

    def __init__(self) -> None:
        """Without nodes."""
    def __len__(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def parents(self) -> list[int]:
        """The number of each node's parent; -1 for those that follow the text."""
    @property
    def depths(self) -> list[int]:
        """Tokens between the text and each node."""
    @property
    def origins(self) -> list[Origin]:
        """Direct or merged; lookup for those that only ``TreeDraft.add_path`` proposed."""
    @property
    def probabilities(self) -> list[float]:
        """That the whole path to a node is the target's choice; never above its parent's."""
    @property
    def confidences(self) -> list[float]:
        """The drafter's own probability, uncalibrated, of each token given its parent.

        Of a lookup: what ``add_path`` was given.
        """
    @property
    def ranks(self) -> list[int]:
        """The highest of the ranks that a node's draft tokens had among all candidates; from 0."""
    @property
    def draft_nodes(self) -> list[int]:
        """The draft node that ends each token; -1 for a lookup."""
    @property
    def drafts(self) -> list[list[int]]:
        """The draft tokens that spell each token; none for a lookup."""

class TreeDraft:
    """Drafting a tree through the trie.

    A draft node is a path of draft tokens, numbered from 0, the text. The drafter runs once on
    each, though several cuts of the path into target tokens may be proposed.

    Args:
        width: continuations of a draft node, at most; 1 to 64.
        floor: what is less probable than this, along its whole path, is not drafted.
        shorter_share: tokenizers prefer long tokens. Where draft tokens spell one target token and
            also several shorter ones, this is the part of the probability that the shorter ones
            get.
        calibration: see ``calibrate``.

    Raises:
        ValueError: an option outside its range.
    """

    def __init__(
        self,
        cache: NgramCache,
        width: int = ...,
        floor: float = ...,
        shorter_share: float = ...,
        calibration: Sequence[tuple[float, float]] = ...,
    ) -> None: ...
    def calibrate(self, calibration: Sequence[tuple[float, float]]) -> None:
        """How the drafter's probability q of a candidate becomes the target's agreement p.

        (slope, offset) by the rank of the candidate: logit(p) = slope · logit(q) + offset. The last
        serves all further ranks; none at all: p = q. Holds for what is expanded from now on.

        Raises:
            ValueError: a negative slope, or numbers that are not finite.
        """
    def expand(self, node: int, logits: NDArray[np.float32]) -> None:
        """Continue a draft node by the drafter's logits after it, float32 [vocabulary].

        Raises:
            IndexError: no such draft node.
            ValueError: logits of another size, or that are not numbers, a node that was expanded
                before, or a cache that changed in this round.
        """
    def frontier(self, limit: int, floor: float = 0.0) -> list[tuple[int, int, int, float]]:
        """Where the drafter should run next: (draft node, draft token, parent node, probability).

        The most probable first, at most ``limit``, none below ``floor``. The drafter's row of a
        node follows its token, which follows those of its parent, up to the text (node 0). The
        probability is that of the likeliest path of target tokens that goes on from there.
        """
    def add_path(self, tokens: Sequence[int], probability: float) -> None:
        """Propose target tokens from the text without drafting, a ``Lookup``'s say.

        Any of the vocabulary; ``probability``: of each, given the one before.

        Raises:
            IndexError: a token outside the target's vocabulary.
            ValueError: a probability outside [0, 1].
        """
    def gains(self) -> list[float]:
        """The probabilities of all target nodes so far, in descending order.

        The k-th is what the k-th node adds to the expected number of accepted tokens.
        """
    def finish(self, count: int) -> TreeProposal:
        """The ``count`` most probable target nodes; the object is ready for the next round.

        Raises:
            ValueError: a cache that changed in this round; the tree is lost then.
        """

class TreeVerdict(Verdict):
    """What a round emits: the accepted path and one corrected or free token."""

    @property
    def path(self) -> list[int]:
        """The accepted nodes of the proposal, from the text down."""
    @property
    def judgements(self) -> list[Judgement]:
        """Of each node of the proposal."""

class Walker:
    """Takes the target's own next token at each node of a tree, as plain decoding takes it.

    The tokens are the same whatever was proposed; an empty proposal is plain decoding.
    """

    def __init__(self) -> None: ...
    def walk(
        self,
        proposal: TreeProposal,
        logits: NDArray[np.float32],
        sampling: SamplingParameters,
        history: History,
        seed: int,
        position: int,
    ) -> TreeVerdict:
        """Walk from the text down while the token taken is a child.

        Greedy sampling takes the argmax; otherwise the token of ``position`` is the ``quantile``
        at ``uniform_at(seed, position)``.

        Args:
            logits: float32 [len(proposal) + 1, target vocabulary], C-contiguous; row 0 follows the
                last token of the sequence, row i + 1 follows node i.
            history: the emitted tokens are added to it; an error leaves it as it was.
            position: of the first token emitted, counted from the beginning of the answer.

        Raises:
            ValueError: logits of another shape, or that are not numbers.
        """

class CostCurve:
    """Seconds of a pass over n tokens: monotone, linear between measured sizes and beyond.

    Args:
        seconds: of passes over some numbers of tokens, 1 among them.

    Raises:
        ValueError: size 1 is missing, a size is not from 1 to 65,536, or a time is not positive and
            finite.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None: ...
    def seconds(self, tokens: float) -> float:
        """Expected seconds of a pass over ``tokens``, which may be a fraction (an average)."""
    def observe(self, tokens: int, seconds: float) -> None:
        """Follow a pass over so many tokens, at least one, which took ``seconds``.

        A curve moves by a bounded step, which makes it a running median rather than a mean.
        """
    @property
    def has_moved(self) -> bool:
        """Whether it is worth writing down again, as new ones are."""
    def written(self) -> None:
        """It has been written down."""

class Costs:
    """The curves of a target, by band of context, and of a drafter.

    Args:
        target: by a band's upper end; at least one.

    Raises:
        ValueError: no band, or one that is not among ``BANDS``.
    """

    BANDS: ClassVar[list[int]]
    """Upper ends of the bands, in tokens; the last one has no end."""

    def __init__(self, target: Mapping[int, CostCurve], drafter: CostCurve) -> None: ...
    def target(self, context: int) -> CostCurve:
        """The target's curve at a context length. That of a new band begins as the nearest one."""
    @property
    def drafter(self) -> CostCurve: ...
    @property
    def bands(self) -> dict[int, CostCurve]:
        """The target's curves, by a band's upper end."""

class Judged:
    """A drafted token that the target found right or wrong.

    Args:
        rank: among the drafter's choices in its place; 0: the first.
        score: how likely it was to be right, by the drafter or by what scores in its place.
    """

    def __init__(self, rank: int, score: float, right: bool) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def score(self) -> float: ...
    @property
    def right(self) -> bool: ...

class Outcome:
    """What a round did.

    Args:
        rows: of the target's pass.
        tokens: that the round made.
        passes: tokens and seconds of each pass of the drafter, those that drew nothing included.
            The first has those tokens that it had to catch up with.
        judged: what the target said of the drafted tokens.
        target_seconds: of its pass.
        other_seconds: of the rest of the round.
        match: how many tokens at the end of the text led to what lookup found; 0: to nothing.
        found_judged: tokens of the lookup, proposed or not, that the round showed to be right or
            wrong: the right ones at its beginning, and the first wrong one.
        found_right: of those, the right ones.
    """

    def __init__(
        self,
        rows: int,
        tokens: int,
        passes: Sequence[tuple[int, float]],
        judged: Sequence[Judged],
        target_seconds: float,
        other_seconds: float,
        match: int = 0,
        found_judged: int = 0,
        found_right: int = 0,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def passes(self) -> list[tuple[int, float]]: ...
    @property
    def judged(self) -> list[Judged]: ...
    @property
    def target_seconds(self) -> float: ...
    @property
    def other_seconds(self) -> float: ...
    @property
    def match(self) -> int: ...
    @property
    def found_judged(self) -> int: ...
    @property
    def found_right(self) -> int: ...

def calibrated(score: float, slope: float, offset: float) -> float:
    """The probability of a score, whose logit the line maps to the logit of the probability."""

class Policy:
    """Decides what rounds draft. One instance serves one session, generation by generation.

    A round proposes a tree of target tokens. A chain is a tree whose layers have one open node
    each, the token drawn last. Plain decoding is the tree without nodes.

    A policy is asked before a round and after each pass of the drafter, and told what came of it.
    Its answers may depend on what was drafted so far, on past rounds and on time, never on what the
    next pass would draw. The draft is then a stopping time, and the verification of a chain stays
    exact (method: walk the trie). A class that derives from this one defines all of it.
    """

    def __init__(self) -> None: ...
    @property
    def calibration(self) -> list[tuple[float, float]]:
        """Slope and offset, by rank: see ``TreeDraft.calibrate``; none: as the drafter says."""

    def begin(self, room: int, space: int, context: int, unread: int, found: int) -> int:
        """The most nodes that this round may score, at most ``space``; 0 is plain decoding.

        Args:
            room: tokens that are still wanted, less one.
            space: nodes that there is room for.
            context: target tokens in the KV cache.
            unread: draft tokens that the drafter would have to read in its first pass.
            found: tokens that a lookup would propose.
        """

    def found(self, match: int) -> float:
        """How likely a looked up token is, after a match of so many tokens."""

    def layer(self, open_nodes: Sequence[float], gains: Sequence[float], limit: int) -> int:
        """How many of the open draft nodes the drafter runs on next; 0 ends drafting.

        Args:
            open_nodes: their probabilities, in descending order; before the first pass 1, the text.
            gains: the probabilities of the target nodes so far, in descending order.
            limit: what ``begin`` said.
        """

    def count(self, gains: Sequence[float], limit: int) -> int:
        """How many target nodes to score, the most probable ones, at most ``limit``."""

    def observe(self, outcome: Outcome) -> None:
        """What came of the round.

        Raises:
            ValueError: it cannot be.
        """

class Fixed(Policy):
    """The same number of tokens every round, ended early by low confidence.

    The rule is the threshold of adaptive drafting (method, section 4): draft until
    1 − Π score > γ, where ``confidence`` = 1 − γ.

    Args:
        nodes: of a chain or a tree. Of a tree the most probable ones.
        confidence: no drafting goes on from a path whose product of scores falls below this; 0:
            from every one.
    """

    def __init__(self, nodes: int, confidence: float = 0.0) -> None: ...

class CostAware(Policy):
    """Drafts what makes most tokens per second on this machine.

    With ρ the present tokens per second, t(n) the seconds of the target's pass over n tokens and
    d(n) those of the drafter's:

    1. A node is worth its probability, in tokens, and its row costs ρ (t(n + 1) − t(n)).
    2. The tree is as many of the most probable nodes as make worth less cost largest.
    3. Running the drafter on an open node of probability P is expected to add a node worth P a,
       where a is how often the drafter's first choice is right.
    4. The drafter runs on as many open nodes as make the sum of these, less the cost of their rows
       and ρ d(n), largest. It stops where that is not positive.
    5. Whether rounds may draft at all is decided by an account, which bounds what may be lost
       against plain decoding: ``CREDIT`` plain steps, and ``ALLOWANCE`` of the time.

    Args:
        costs: of the target and the drafter, which it follows.
    """

    MAX_NODES: ClassVar[int]
    MAX_PASSES: ClassVar[int]
    """Passes of the drafter in a round, at most."""
    MAX_LAYER: ClassVar[int]
    """Draft nodes in a pass of the drafter, at most."""
    ALLOWANCE: ClassVar[float]
    """Share of the time that may be lost on finding out whether drafting pays."""
    CREDIT: ClassVar[float]
    """Further plain steps that may be lost before rounds have gained any."""

    def __init__(self, costs: Costs) -> None: ...
    @property
    def calibration(self) -> list[tuple[float, float]]:
        """Slope and offset, by rank: see ``TreeDraft.calibrate``."""

class Speller:
    """Draft tokens for a target token, aligned by bytes.

    Args:
        pair: the direct mapping.
        segment: draft tokens whose surfaces join to the given bytes; None when there are none.
        special_text: what the drafter sees for the target's special tokens. They have no surface,
            are never proposed, and may come at any time.
        specials: target's special token → the drafter's own special token for it, where there is
            one.

    Raises:
        IndexError: a token is outside its vocabulary.
    """

    def __init__(
        self,
        pair: VocabularyPair,
        segment: Callable[[bytes], Sequence[int] | None],
        special_text: str = "\n",
        specials: Mapping[int, int] = ...,
    ) -> None: ...
    def spell(self, token: int) -> list[int]:
        """Draft tokens whose bytes are those of ``token``.

        Empty when the drafter cannot spell them: it then does not see the token.

        Raises:
            IndexError: the token is outside the vocabulary.
        """

class DraftContext:
    """The draft tokens that stand for the target's sequence, by reverse translation.

    They are aligned by bytes, token by token. Text is never decoded and encoded again, so a
    character that is split over tokens, a leading space or a special token cannot move the boundary
    at which the next draft begins.

    Args:
        begin: draft tokens that open it (beginning of text).
    """

    def __init__(self, speller: Speller, cache: NgramCache, begin: Sequence[int] = ...) -> None: ...
    @property
    def tokens(self) -> list[int]: ...
    def extend(
        self,
        targets: Sequence[int],
        spellings: Sequence[Sequence[int]] = ...,
        *,
        said: bool = False,
    ) -> int:
        """Append target tokens; observe those that are n-grams.

        Args:
            targets: target tokens, in order.
            spellings: draft tokens of the first ``len(spellings)`` of them, as they were drafted;
                none for one that was proposed without drafting.
            said: whether the target said them. Tokens of a prompt it did not say.

        Returns:
            How many n-grams were inserted into the cache.
        """

    def refuse(self, proposed: Sequence[int], said: int) -> None:
        """Take in what the target said where an n-gram was proposed.

        Args:
            proposed: draft tokens of the n-gram.
            said: the target token in its place.
        """

class Pass:
    """A pass of a model that a generation wants."""

    @property
    def held(self) -> int:
        """Tokens that the KV cache must hold before; where it holds more, it is cut."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def parents(self) -> list[int]:
        """Of each token the slot that it follows, for a pass over nodes of a tree; else none."""

    @property
    def rows(self) -> int:
        """Rows of logits that are wanted, those of the last tokens."""

class Kept:
    """What a round leaves in a KV cache: all that it holds, where both are None."""

    @property
    def length(self) -> int | None:
        """Its first tokens."""

    @property
    def path(self) -> list[int] | None:
        """Of the tree behind the text the nodes in these slots; no others."""

class Settled:
    """How a round ended."""

    @property
    def target(self) -> Kept: ...
    @property
    def drafter(self) -> Kept: ...
    @property
    def draft_tokens(self) -> int:
        """Draft tokens that were drawn; of a tree those that spell what was proposed."""

    @property
    def inserted(self) -> int:
        """N-grams that were inserted into the cache."""

class Shown:
    """One path of a round: see ``omnidraft.runtime.decoding.observed.Round``."""

    @property
    def context(self) -> int:
        """How many of the generation's draft tokens stood before the draft."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def drafts(self) -> list[int]: ...
    @property
    def counts(self) -> list[int]: ...
    @property
    def accepted(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def rows(self) -> list[int]:
        """Rows of the target's logits."""

    @property
    def draft_nodes(self) -> list[int]:
        """Of a tree the draft nodes on the path that the drafter ran on: see ``pass_nodes``."""

class Generation:
    """An answer of a target, round by round: which passes of the two models to run, and what came
    of them. Whoever holds the models runs the passes; all that a round decides is decided here.

        generation.read(prompt)                    # the target has read all but its last token
        while ...:
            more = generation.begin(room, target.length, target.max_length)
            while more:
                ...                                # run generation.drafter_pass
                generation.drafted(logits, seconds)
                more = generation.draft_on()
            wanted = generation.score()            # the target's pass
            verdict = generation.scored(logits)
            settled = generation.settle(target_seconds, other_seconds)
            ...                                    # keep of both KV caches what it says

    Args:
        vocabulary_size: columns of the target's logits.
        verification: of chains. GREEDY: what is proposed stands while it is what plain decoding
            takes, by the argmax or by the random numbers that belong to the seed and to each
            token's place. EXACT and PAPER: by rejection sampling.
        ends: end-of-text tokens; the answer ends with the first of them.
        cache, speller, policy: see ``Drafting``; None: plain decoding.
        lookup, begin, tree: see ``Drafting``.
        max_length, scores_trees: of the drafter.
        held: what the drafter's KV cache holds, as far as it may be used.

    Raises:
        ValueError: a temperature that rejection sampling cannot draft at.
    """

    def __init__(
        self,
        vocabulary_size: int,
        sampling: SamplingParameters,
        *,
        verification: Verification = ...,
        seed: int = 0,
        ends: Sequence[int] = ...,
        cache: NgramCache | None = None,
        speller: Speller | None = None,
        policy: Policy | None = None,
        lookup: Lookup | None = None,
        begin: Sequence[int] = ...,
        tree: bool = False,
        max_length: int = 0,
        scores_trees: bool = False,
        held: Sequence[int] = ...,
    ) -> None: ...
    def read(self, prompt: Sequence[int]) -> int:
        """Take in the prompt, before the first round.

        Returns:
            How many n-grams were inserted into the cache.

        Raises:
            IndexError: a token is outside the target's vocabulary.
            ValueError: it is empty.
        """

    def begin(self, room: int, length: int, max_length: int) -> bool:
        """Begin a round.

        Args:
            room: tokens that are still wanted, less the one that every round adds.
            length: tokens in the target's KV cache.
            max_length: that it can hold.

        Returns:
            Whether the drafter is to run ``drafter_pass``.
        """

    @property
    def drafter_pass(self) -> Pass: ...
    @property
    def pass_nodes(self) -> list[int]:
        """The draft nodes whose rows the pass gives, in order; of a chain none."""

    def drafted(self, logits: NDArray[np.float32], seconds: float) -> None:
        """The drafter's pass gave logits.

        Args:
            logits: float32 [rows, draft vocabulary].
            seconds: that it took.

        Raises:
            ValueError: they have another shape, or are not numbers: see ``fail``.
        """

    @property
    def confidence(self) -> float:
        """The largest probability among the tokens that could be drawn at a chain's last step."""

    @property
    def drew(self) -> bool:
        """Whether a chain's last step drew a token."""

    def score_as(self, score: float) -> None:
        """Say how likely a chain's last token is to be accepted, in place of ``confidence``."""

    def draft_on(self) -> bool:
        """Whether the drafter is to run again: the next ``drafter_pass``."""

    def fail(self) -> None:
        """The drafter cannot go on. What was drafted so far is proposed, and no further round
        drafts."""

    @property
    def drafts(self) -> bool:
        """Whether there is a drafter that can go on."""

    def score(self) -> Pass:
        """The target's pass over the text's last token and what is proposed after it."""

    def scored(self, logits: NDArray[np.float32]) -> Verdict:
        """The tokens of this round. Where an end-of-text token or the room ends the answer before,
        they end there.

        Args:
            logits: float32 [rows, target vocabulary].

        Raises:
            ValueError: they have another shape, or are not numbers.
        """

    @property
    def ended(self) -> bool:
        """Whether the round's last token is an end-of-text token."""

    def end_at(self, end: int) -> None:
        """Cut what stands behind token ``end`` of the verdict, which ``scored`` gave.

        Raises:
            IndexError: there is no such token.
        """

    @property
    def verdict(self) -> Verdict: ...
    @property
    def rows(self) -> list[int]:
        """Of each of the verdict's tokens, the row of logits that it was taken from."""

    @property
    def proposed(self) -> list[int]:
        """The target tokens that the round proposed."""

    @property
    def parents(self) -> list[int]:
        """Which proposed token each of them follows; −1: the text."""

    def settle(self, target_seconds: float, other_seconds: float) -> Settled:
        """End the round and learn from it.

        Args:
            target_seconds: of the target's pass.
            other_seconds: of ``scored``.
        """

    def shown(self) -> list[Shown]:
        """The paths of the round that was settled last, for what learns from them; none where
        nothing drafts."""

    @property
    def context(self) -> NDArray[np.int32]:
        """The draft tokens that stand for the text, a view that holds until the next ``begin``. A
        context that grew too long for the drafter loses its beginning there."""
