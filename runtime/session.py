"""A target and a drafter, paired and ready to answer."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from omnidraft._native import (
    CacheDamagedError,
    CacheMismatchError,
    Lookup,
    MappingRule,
    NgramCache,
    Origin,
    SamplingParameters,
    Verification,
    Vocabulary,
    VocabularyPair,
)
from omnidraft.runtime.decoding.decoder import Drafting, SpeculativeDecoder
from omnidraft.runtime.decoding.draft_length import CostAware, DraftLengthPolicy, Fixed
from omnidraft.runtime.decoding.lease import DEFAULT_WAIT, Lease
from omnidraft.runtime.decoding.translation import Speller
from omnidraft.runtime.engines.model import use_adapter
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.models.cache import cache_folder
from omnidraft.runtime.statistics import Statistics
from omnidraft.runtime.text.surface import TextStream
from omnidraft.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from omnidraft.runtime.decoding.costs import Costs
    from omnidraft.runtime.learning.learner import AdapterChoice, Learner

DraftLength = int | Literal["auto"]
FIXED_DRAFT_LENGTH = 4
DEFAULT_DRAFT_LENGTH: DraftLength = "auto"
DEFAULT_DRAFT_CONFIDENCE = 0.3
"""Measured with the default drafter: see benchmarks/README.md."""


@dataclass(frozen=True)
class GenerationOptions:
    """How one answer is generated.

    Args:
        max_new_tokens: at most so many tokens.
        sampling: temperature 0 (the default) is greedy.
        verification: how sampled proposals are verified; greedy needs no choice.
        seed: makes a sampled answer repeatable.
        draft_length: draft tokens per round; 0 decodes plainly; "auto": as many as pay for
            themselves, see ``CostAware``. That depends on measured times, so a sampled answer with
            a seed, which is to be repeatable, takes a fixed length instead.
        draft_confidence: of a fixed length, see ``Fixed``.
        raw: take the prompt as text to continue instead of a chat message.
    """

    max_new_tokens: int = 128
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    verification: Verification = Verification.EXACT
    seed: int | None = None
    draft_length: DraftLength = DEFAULT_DRAFT_LENGTH
    draft_confidence: float = DEFAULT_DRAFT_CONFIDENCE
    raw: bool = False

    @property
    def repeatable(self) -> bool:
        """Sampled with a seed: nothing may depend on time."""
        return self.seed is not None and not self.sampling.greedy


@dataclass(frozen=True)
class Piece:
    """A token of an answer and the text it completes, empty within a character.

    A piece without a token, at the very end, is what an unfinished character leaves.
    """

    token: int | None
    origin: Origin
    text: str


@dataclass
class Answer:
    """A whole answer."""

    text: str
    token_ids: list[int]
    finish_reason: str
    statistics: Statistics


class _Pairing:
    """A drafter of a session, paired with its target.

    Args:
        ngram_folder: see ``Session``.
        learner_of: opens the adapter of a pair of vocabularies, where there is one.
    """

    def __init__(
        self,
        target: LoadedModel,
        drafter: LoadedModel,
        rule: MappingRule,
        ngram_folder: Path | None,
        special_text: str,
        learner_of: Callable[[VocabularyPair], Learner] | None,
    ) -> None:
        self.drafter = drafter
        self.costs: Costs | None = None
        self.learner: Learner | None = None
        self._target = target
        self._policies: dict[tuple[float, bool], CostAware] = {}
        self._ngram_file: Path | None = None
        pair = VocabularyPair(
            native_vocabulary(drafter.tokenizer, drafter.model.vocab_size),
            native_vocabulary(target.tokenizer, target.model.vocab_size),
            rule,
        )
        if learner_of is not None:
            self.learner = learner_of(pair)
            self.cache = self.learner.cache
        else:
            if ngram_folder is not None:
                self._ngram_file = ngram_folder / f"{pair.fingerprint:016x}.ngrams"
            self.cache = _load_ngrams(self._ngram_file, pair)
        self._speller = Speller(
            pair,
            target.tokenizer.surface,
            partial(_segment, drafter),
            special_text,
            _shared_specials(drafter, target.tokenizer),
        )

    def drafting(self, options: GenerationOptions, lookup: Lookup) -> Drafting:
        """What a decoder needs of the drafter."""
        tokenizer = self.drafter.tokenizer
        bos = tokenizer.bos_id if tokenizer.add_bos else None
        return Drafting(
            self.drafter.model,
            self.cache,
            self._speller,
            begin=() if bos is None else (bos,),
            policy=self._policy(options),
            head=self.learner.head if self.learner else None,
            lookup=lookup if options.draft_length == "auto" else None,
        )

    def begin(self) -> None:
        """An answer begins; another session may have used the drafter since the last."""
        if self.learner is not None:
            self.learner.begin()
        else:
            use_adapter(self.drafter.model, None)

    def save(self) -> None:
        """See ``Session.save``."""
        if self.learner is not None:
            self.learner.finish()
        if self._ngram_file is None:
            return
        if self.costs is not None:
            with contextlib.suppress(OmniDraftError):  # they are measured again next time
                self.costs.save()
        try:
            self._ngram_file.parent.mkdir(parents=True, exist_ok=True)
            self.cache.save(self._ngram_file)
        except OSError as error:
            raise OmniDraftError(
                f"the n-gram cache cannot be written ({error}); free some disk space, or set "
                "OMNIDRAFT_CACHE to a folder that can be written"
            ) from error

    def _policy(self, options: GenerationOptions) -> DraftLengthPolicy:
        if options.draft_length != "auto":
            return Fixed(options.draft_length, options.draft_confidence)
        if options.repeatable:
            return Fixed(FIXED_DRAFT_LENGTH, options.draft_confidence)
        if self.costs is None:
            from omnidraft.runtime.decoding.costs import load_costs

            self.costs = load_costs(self._target, self.drafter)
        # How much is accepted depends on the temperature more than on anything else, and what a
        # score says of it on whose it is.
        temperature = round(min(2.0, options.sampling.temperature), 1)
        kind = (temperature, bool(self.learner and self.learner.head))
        if kind not in self._policies:
            self._policies[kind] = CostAware(self.costs)
        return self._policies[kind]


class Session:
    """Answers prompts with a target, faster through a drafter.

    It may be used from several threads, and models may be shared by several sessions: one answer is
    made at a time, and the others wait for their turn.

    The n-gram cache of the pair is kept in ``ngram_folder`` between sessions; a damaged one is set
    aside with a warning and grows anew. With an adapter it is the adapter's own.

    Args:
        target: the model whose answers are wanted.
        drafter: proposes tokens; None decodes plainly.
        rule: which tokens of the two vocabularies are direct pairs.
        ngram_folder: None keeps the n-gram cache in memory only.
        special_text: what the drafter sees for the target's special tokens.
        adapter: what the drafter has learned for this target, and whether it goes on.
        wait: seconds that an answer waits for the models; 0: it is refused while they are in use.

    Raises:
        ModelInUseError: an adapter is to be set while the drafter is in use.
        OmniDraftError: see ``Learner``, ``Lease``; an adapter without a drafter.
    """

    def __init__(
        self,
        target: LoadedModel,
        drafter: LoadedModel | None = None,
        *,
        rule: MappingRule = MappingRule.BYTES,
        ngram_folder: Path | None = None,
        special_text: str = "\n",
        adapter: AdapterChoice | None = None,
        wait: float = DEFAULT_WAIT,
    ) -> None:
        learner_of = None
        if adapter is not None:
            if drafter is None:
                raise OmniDraftError("an adapter belongs to a drafter, and here is none")
            # Imported here: it takes longer than all else that a session starts with.
            from omnidraft.runtime.learning.learner import Learner

            learner_of = partial(Learner, adapter, target, drafter)
        self.target = target
        self.drafter = drafter
        self.last: SpeculativeDecoder | None = None
        self._lookup = Lookup(target.model.vocab_size)
        self._wait = wait
        lease = self._lease()
        self._pairing: _Pairing | None = None
        if drafter is not None:
            # An adapter changes the drafter, from which an answer may be under way.
            with lease if adapter is not None else contextlib.nullcontext():
                self._pairing = _Pairing(
                    target, drafter, rule, ngram_folder, special_text, learner_of
                )

    @property
    def learner(self) -> Learner | None:
        """What learns, or has learned, with an adapter."""
        return self._pairing.learner if self._pairing else None

    @property
    def cache(self) -> NgramCache | None:
        """The n-gram cache of the pair; None without a drafter."""
        return self._pairing.cache if self._pairing else None

    @cache.setter
    def cache(self, cache: NgramCache) -> None:
        assert self._pairing is not None
        self._pairing.cache = cache

    def encode(self, prompt: str, *, raw: bool = False) -> list[int]:
        """Target tokens of a prompt, through the chat template where there is one.

        Raises:
            OmniDraftError: text that is not valid Unicode, or for which the model lacks a token.
        """
        tokenizer = self.target.tokenizer
        if tokenizer.has_chat_template and not raw:
            tokens = tokenizer.encode_chat([{"role": "user", "content": prompt}])
        else:
            tokens = tokenizer.encode(prompt)
        if not tokens and tokenizer.bos_id is not None:
            tokens = [tokenizer.bos_id]
        width = self.target.model.vocab_size
        if unknown := sorted({token for token in tokens if token >= width}):
            names = ", ".join(repr(tokenizer.tokens[token]) for token in unknown[:3])
            raise OmniDraftError(
                f"the prompt holds {names}, which the tokenizer knows and the model does not: its "
                f"vocabulary ends at {width} tokens. Leave it out of the prompt, or put the "
                "model's own tokenizer beside its weights"
            )
        return tokens

    def stream(self, prompt: str, options: GenerationOptions | None = None) -> Iterator[Piece]:
        """Yield the answer as it comes; ``last`` then holds statistics and the finish reason.

        The joined texts are the answer; special tokens have none. The models are in use from the
        first piece on until the last, or until the iterator is closed or dropped. An answer that is
        broken off is not learned from.

        Raises:
            ModelInUseError: another answer did not end in time: see ``Lease``.
            ContextOverflowError, OmniDraftError: see ``SpeculativeDecoder.generate``.
        """
        with self._answering(options or GenerationOptions()) as answering:
            yield from answering(prompt)

    def generate(self, prompt: str, options: GenerationOptions | None = None) -> Answer:
        """The whole answer at once.

        Raises:
            ModelInUseError, ContextOverflowError, OmniDraftError: see ``stream``.
        """
        with self._answering(options or GenerationOptions()) as answering:
            pieces = list(answering(prompt))
        decoder = answering.decoder
        return Answer(
            "".join(piece.text for piece in pieces),
            [piece.token for piece in pieces if piece.token is not None],
            decoder.finish_reason,
            decoder.statistics,
        )

    def save(self) -> None:
        """Keep what was learned for the next session.

        With an adapter that learns that is the adapter, without one the n-gram cache and the
        measured costs, if there is a folder for them.

        Raises:
            ModelInUseError: see ``stream``.
            OmniDraftError: the folder cannot be written.
        """
        if self._pairing:
            with self._lease():
                self._pairing.save()

    def _lease(self) -> Lease:
        models = [self.target, *([self.drafter] if self.drafter else [])]
        return Lease([each.model for each in models], self._wait)

    @contextlib.contextmanager
    def _answering(self, options: GenerationOptions) -> Iterator[_Answering]:
        """Hold the models for one answer, and learn from it when it was made to its end."""
        learner = self.learner
        with self._lease() as lease:
            try:
                if self._pairing:
                    self._pairing.begin()
                self.last = self._decoder(options, lease)
                yield _Answering(self, self.last, options)
            except BaseException:
                if learner:
                    learner.abandon()
                raise
            if learner:
                learner.end()

    def _decoder(self, options: GenerationOptions, lease: Lease) -> SpeculativeDecoder:
        pairing = self._pairing if options.draft_length != 0 else None
        learner = self.learner
        return SpeculativeDecoder(
            self.target.model,
            pairing.drafting(options, self._lookup) if pairing else None,
            sampling=options.sampling,
            verification=options.verification,
            seed=options.seed,
            observer=learner.buffer.observe if learner and learner.buffer else None,
            lease=lease,
        )


@dataclass(frozen=True)
class _Answering:
    """One answer of a session, under its lease."""

    session: Session
    decoder: SpeculativeDecoder
    options: GenerationOptions

    def __call__(self, prompt: str) -> Iterator[Piece]:
        session, options = self.session, self.options
        tokenizer, learner = session.target.tokenizer, session.learner
        text = TextStream()
        for token, origin in self.decoder.generate(
            session.encode(prompt, raw=options.raw),
            options.max_new_tokens,
            tuple(tokenizer.eos_ids),
        ):
            if learner:
                learner.first_token()
            yield Piece(token, origin, text.push(tokenizer.shown_bytes(token)))
        rest = text.finish()
        if rest:
            yield Piece(None, Origin.FREE, rest)


def read_draft_length(text: str) -> DraftLength:
    """What ``--draft-length`` was given.

    Raises:
        OmniDraftError: neither a number from 0 to 32 nor ``auto``.
    """
    if text == "auto":
        return "auto"
    if text.isdecimal() and len(text) <= 2 and int(text) <= 32:
        return int(text)
    raise OmniDraftError(f"--draft-length must be a number from 0 to 32, or auto, not {text!r}")


def default_ngram_folder() -> Path:
    """Where sessions of the command line keep their n-gram caches."""
    return cache_folder() / "ngrams"


def native_vocabulary(tokenizer: Tokenizer, width: int) -> Vocabulary:
    """The surfaces of a model's tokens, padded to the columns of its logits.

    Args:
        width: columns; models are often padded beyond their tokenizer. Columns without a token are
            special: never proposed, though the target may choose them.
    """
    known = min(width, len(tokenizer.surfaces))
    padding = width - known
    return Vocabulary(
        [*tokenizer.surfaces[:known], *([None] * padding)],
        [*tokenizer.tokens[:known], *([""] * padding)],
        [token for token in range(known) if tokenizer.is_byte_token(token)],
    )


def _segment(drafter: LoadedModel, data: bytes) -> list[int] | None:
    """``Tokenizer.segment``; None also where it takes a token that the drafter's model lacks."""
    tokens = drafter.tokenizer.segment(data)
    width = drafter.model.vocab_size
    return None if tokens is None or any(token >= width for token in tokens) else tokens


def _shared_specials(drafter: LoadedModel, target: Tokenizer) -> dict[int, int]:
    """Target's special tokens that the drafter knows by the same name."""

    def specials(tokenizer: Tokenizer) -> Iterator[tuple[str, int]]:
        for token, (name, surface) in enumerate(
            zip(tokenizer.tokens, tokenizer.surfaces, strict=True)
        ):
            if surface is None and name:
                yield name, token

    width = drafter.model.vocab_size
    known = {name: token for name, token in specials(drafter.tokenizer) if token < width}
    return {token: known[name] for name, token in specials(target) if name in known}


def _load_ngrams(path: Path | None, pair: VocabularyPair) -> NgramCache:
    if path is not None and path.exists():
        try:
            return NgramCache.load(path, pair)
        except (CacheDamagedError, CacheMismatchError, OSError) as error:
            warnings.warn(f"{error}; a new n-gram cache begins", stacklevel=2)
            # What cannot be moved will be replaced when the new cache is saved.
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(".damaged"))
    return NgramCache(pair)
