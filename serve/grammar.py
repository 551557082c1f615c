"""Answers of a form, say JSON: masks over a target's tokens, by llguidance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import llguidance
import llguidance.numpy
import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.errors import OmniDraftError, OptionError
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.text.tokenizer import Tokenizer
from omnidraft.serve.forms import Form

# Finite, unlike −∞, which is refused as no number; its probability is 0 nonetheless.
_NEVER = np.float32(-1e30)
# Where only one text may come it may be of any tokens, of which the target has the choice.
_ANY_SPELLING = '%llguidance {"no_forcing": true}\n'
# Patterns of the longest form could keep everybody waiting for seconds, and take gigabytes. Forms
# with thousands of choices, or of strings of thousands of characters, need a tenth of this.
_LIMITS = llguidance.LLParserLimits(initial_lexer_fuel=100_000)


class Grammar(NamedTuple):
    """What finds the texts that are allowed, at their beginning."""

    target: llguidance.LLMatcher
    drafter: llguidance.LLMatcher | None


class Grammars:
    """What makes constraints for answers of one target.

    Args:
        drafter: what is drafted is held to a grammar, too.

    Raises:
        OmniDraftError: the target has no token that ends a text.
    """

    def __init__(self, target: LoadedModel, drafter: LoadedModel | None = None) -> None:
        self._target = _Vocabulary(target.tokenizer, target.model.vocab_size)
        if not any(each < target.model.vocab_size for each in self._target.ends):
            raise OmniDraftError(
                "the model has no token that ends a text, so that its answers can have no form"
            )
        self._drafter = None
        if drafter is not None:
            vocabulary = _Vocabulary(drafter.tokenizer, drafter.model.vocab_size)
            # It is told the answer byte by byte, whatever the target's tokens are.
            if vocabulary.ends and vocabulary.spells_bytes:
                self._drafter = vocabulary

    def grammar(self, form: Form) -> Grammar:
        """What finds the texts of a form, at its beginning.

        Raises:
            OmniDraftError: there is no such form; or it fits no text, or is too much.
        """
        grammar = llguidance.LLMatcher.grammar_from_lark(_ANY_SPELLING + form.grammar)
        matcher = self._target.matcher(grammar)
        if matcher.is_error():
            said = " ".join(matcher.get_error().split())
            raise OptionError(f"{form.param} has no form that can be used: {said:.300}")
        self._target.allowed(matcher)  # a grammar that fits no text, or is too much, shows it here
        return Grammar(matcher, self._drafter.matcher(grammar) if self._drafter else None)

    def constraint(self, grammar: Grammar) -> FormConstraint:
        """What holds one answer to a grammar."""
        drafts = None
        if self._drafter is not None and grammar.drafter is not None:
            drafts = FormDrafts(grammar.drafter.deep_copy(), self._drafter)
        return FormConstraint(grammar.target.deep_copy(), self._target, drafts)


class FormConstraint:
    """See ``Constraint``."""

    def __init__(
        self, matcher: llguidance.LLMatcher, vocabulary: _Vocabulary, drafts: FormDrafts | None
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self.drafts = drafts
        """See ``Constraint.drafts``."""

    def masked(
        self, logits: NDArray[np.float32], tokens: Sequence[int], parents: Sequence[int]
    ) -> NDArray[np.float32]:
        """See ``Constraint.masked``."""
        states: list[llguidance.LLMatcher | None] = [self._matcher]
        self._vocabulary.follow(states, tokens, parents)
        return self._vocabulary.masked(logits, states)

    def advance(self, tokens: Sequence[int]) -> None:
        """See ``Constraint.advance``."""
        for token in tokens:
            if token in self._vocabulary.ends:
                return
            if not self._matcher.consume_token(token):
                raise OmniDraftError(f"the answer left its grammar: {self._matcher.get_error()}")
            if self.drafts is not None:
                self.drafts.advance(self._vocabulary.tokens[token])


class FormDrafts:
    """See ``DraftMask``."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: _Vocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._states: list[llguidance.LLMatcher | None] = [matcher]

    def advance(self, data: bytes) -> None:
        """The answer goes on with these bytes."""
        self._matcher.consume_tokens(self._vocabulary.spelled(data))

    def begin(self) -> None:
        """See ``DraftMask.begin``."""
        self._states = [self._matcher]

    def masked(
        self, logits: NDArray[np.float32], tokens: Sequence[int], parents: Sequence[int]
    ) -> NDArray[np.float32]:
        """See ``DraftMask.masked``."""
        self._vocabulary.follow(self._states, tokens, parents)
        return self._vocabulary.masked(logits, self._states[-len(logits) :])


class _Vocabulary:
    """The tokens of a model, as llguidance wants them.

    Args:
        width: columns of the model's logits; a drafter's vocabulary may have more tokens.
    """

    def __init__(self, tokenizer: Tokenizer, width: int) -> None:
        count = max(width, len(tokenizer.surfaces))
        self._width = width
        self.ends = sorted(each for each in tokenizer.eos_ids if each < count)
        if not self.ends:
            return
        self.eos_token_id = self.ends[0]
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [b""] * count
        self.special_token_ids = []
        self._bytes: dict[bytes, int] = {}
        spellings: dict[bytes, list[int]] = {}
        for token in range(count):
            surface = tokenizer.surface(token)
            if surface and token not in tokenizer.eos_ids:
                self.tokens[token] = surface
                spellings.setdefault(surface, []).append(token)
                if len(surface) == 1:
                    self._bytes.setdefault(surface, token)
            else:
                self.tokens[token] = f"<|{token}|>".encode()
                self.special_token_ids.append(token)
        # Of several tokens of the same bytes llguidance names one.
        same = [tokens for tokens in spellings.values() if len(tokens) > 1]
        self._same = np.array([token for tokens in same for token in tokens], np.int64)
        self._groups = np.repeat(np.arange(len(same)), [len(tokens) for tokens in same])
        wrapped = llguidance.TokenizerWrapper(self)
        self._tokenizer = llguidance.LLTokenizer(wrapped, n_vocab=count)
        self._bits = llguidance.numpy.allocate_token_bitmask(1, count)

    def __call__(self, text: bytes | str) -> list[int]:
        # Asked for forced texts only, which nothing here forces; any spelling is one.
        return self.spelled(text.encode() if isinstance(text, str) else text)

    @property
    def spells_bytes(self) -> bool:
        """Whether each byte is a token."""
        return len(self._bytes) == 256

    def spelled(self, data: bytes) -> list[int]:
        """Token ids of bytes, one by one; those that are none are left out."""
        return [self._bytes[each] for byte in data if (each := bytes([byte])) in self._bytes]

    def matcher(self, grammar: str) -> llguidance.LLMatcher:
        """What finds the texts of a grammar."""
        return llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)

    def follow(
        self,
        states: list[llguidance.LLMatcher | None],
        tokens: Sequence[int],
        parents: Sequence[int],
    ) -> None:
        """Add the state behind each token, which follows that of its parent's number.

        None: no text goes on there.
        """
        for token, parent in zip(tokens, parents, strict=True):
            before, state = states[parent], None
            if before is not None and token not in self.ends and before.validate_tokens([token]):
                state = before.deep_copy()
                state.consume_token(token)
            states.append(state)

    def masked(
        self, logits: NDArray[np.float32], states: Sequence[llguidance.LLMatcher | None]
    ) -> NDArray[np.float32]:
        """A copy in which no token is likely that may not come in the state of its row."""
        rows = logits.copy()
        for row, state in zip(rows, states, strict=True):
            if state is not None:  # what is behind a token that is not allowed is never reached
                row[~self.allowed(state)] = _NEVER
        return rows

    def allowed(self, matcher: llguidance.LLMatcher) -> NDArray[np.bool_]:
        """Which tokens may come.

        Raises:
            OmniDraftError: no text goes on there, or it would take too much to tell.
        """
        if matcher.is_stopped():
            allowed = np.zeros(len(self.tokens), np.bool_)
            allowed[self.ends] = True
            return allowed[: self._width]
        llguidance.numpy.fill_next_token_bitmask(matcher, self._bits)
        if matcher.is_error():
            said = matcher.get_error().partition("\n<state>")[0]
            raise OmniDraftError(f"the grammar fits no text, or is too much: {said:.300}")
        bits = np.unpackbits(self._bits[0].view(np.uint8), bitorder="little")[: len(self.tokens)]
        allowed = bits.astype(np.bool_)
        allowed[self.ends] = allowed[self.ends[0]]
        named = np.zeros(len(self._same), np.bool_)
        named[self._groups[allowed[self._same]]] = True
        allowed[self._same] = named[self._groups]
        return allowed[: self._width]
