"""A target and a drafter, paired: their vocabularies, n-gram cache, costs and policies."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omnidraft._native import (
    CacheDamagedError,
    CacheMismatchError,
    CostAware,
    Fixed,
    Lookup,
    MappingRule,
    NgramCache,
    Policy,
    Speller,
    Verification,
    Vocabulary,
    VocabularyPair,
)
from omnidraft.runtime.decoding.drafting import Drafting
from omnidraft.runtime.engines.model import tree_scorer, use_adapter
from omnidraft.runtime.errors import OmniDraftError, OptionError
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.options import FIXED_DRAFT_LENGTH, GenerationOptions
from omnidraft.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from omnidraft.runtime.decoding.costs import Costs
    from omnidraft.runtime.learning.learner import Learner


class Pairing:
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
        self._policies: dict[tuple[float, bool, bool, bool], CostAware] = {}
        self._ngram_file: Path | None = None
        self._pair = pair = VocabularyPair(
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
            partial(_segment, drafter),
            special_text,
            _shared_specials(drafter, target.tokenizer),
        )

    def drafting(self, options: GenerationOptions, lookup: Lookup) -> Drafting:
        """What a decoder needs of the drafter."""
        tokenizer = self.drafter.tokenizer
        bos = tokenizer.bos_id if tokenizer.add_bos else None
        tree = self._tree(options)
        return Drafting(
            self.drafter.model,
            # By the paper's verification a seed's tokens depend on what was drafted.
            NgramCache(self._pair) if options.repeatable else self.cache,
            self._speller,
            begin=() if bos is None else (bos,),
            policy=self._policy(options, tree),
            tree=tree,
            scorer=self.learner.scorer if self.learner else None,
            lookup=lookup if options.draft_length == "auto" and not options.tree else None,
            keep=not options.repeatable,
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
            reason = os.strerror(error.errno) if error.errno else error
            raise OmniDraftError(
                f"the n-gram cache cannot be kept: {reason}. Set OMNIDRAFT_CACHE "
                f"to a folder that can be written, with free space; now it is in "
                f"{self._ngram_file.parent}"
            ) from error

    def _tree(self, options: GenerationOptions) -> bool:
        """Whether rounds draft trees; else chains.

        Raises:
            OptionError: a tree is asked for where none can be drafted.
        """
        head_learns = self.learner is not None and self.learner.needs_chains
        trees = tree_scorer(self._target.model) is not None
        if options.tree:
            if head_learns:
                raise OptionError(
                    "a drafter whose acceptance head learns drafts chains: leave tree out"
                )
            if not trees:
                raise OptionError(
                    f"the engine {self._target.engine} scores no trees of {self._target.name}: "
                    "leave tree out, or give draft_length"
                )
            return True
        chains = head_learns or options.verification is Verification.PAPER
        return trees and not chains and options.draft_length == "auto"

    def _policy(self, options: GenerationOptions, tree: bool) -> Policy:
        if options.tree:
            return Fixed(options.tree)
        if options.draft_length != "auto":
            return Fixed(options.draft_length, options.draft_confidence)
        if options.repeatable:
            return Fixed(FIXED_DRAFT_LENGTH, options.draft_confidence)
        # What a score says of acceptance depends on whose it is, and on how tokens are accepted; on
        # the temperature more than on anything else.
        temperature = round(min(2.0, options.sampling.temperature), 1)
        scored = bool(self.learner and self.learner.scorer)
        kind = (temperature, tree, scored, options.seed is None and not tree)
        if kind not in self._policies:
            if self.costs is None:
                from omnidraft.runtime.decoding.costs import load_costs

                self.costs = load_costs(self._target, self.drafter)
            self._policies[kind] = CostAware(self.costs)
        return self._policies[kind]


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
