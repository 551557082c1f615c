"""Answers of a form, say JSON: masks over a target's tokens, by llguidance."""

from __future__ import annotations

from collections.abc import Sequence

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


class Grammars:
    """What makes constraints for answers of one target.

    Raises:
        OmniDraftError: the target has no token that ends a text.
    """

    def __init__(self, target: LoadedModel) -> None:
        self._width = target.model.vocab_size
        self._ends = sorted(each for each in target.tokenizer.eos_ids if each < self._width)
        if not self._ends:
            raise OmniDraftError(
                "the model has no token that ends a text, so that its answers can have no form"
            )
        wrapped = llguidance.TokenizerWrapper(_Tokens(target.tokenizer, self._width, self._ends[0]))
        self._tokenizer = llguidance.LLTokenizer(wrapped, n_vocab=self._width)

    def grammar(self, form: Form) -> llguidance.LLMatcher:
        """What finds the texts of a form, at its beginning.

        Raises:
            OptionError: there is no such form.
        """
        grammar = llguidance.LLMatcher.grammar_from_lark(_ANY_SPELLING + form.grammar)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            said = " ".join(matcher.get_error().split())
            raise OptionError(f"{form.param} has no form that can be used: {said:.300}")
        return matcher

    def constraint(self, grammar: llguidance.LLMatcher) -> JsonConstraint:
        """What holds one answer to a grammar."""
        return JsonConstraint(grammar.deep_copy(), self._width, self._ends)


class JsonConstraint:
    """See ``Constraint``."""

    def __init__(self, matcher: llguidance.LLMatcher, width: int, ends: Sequence[int]) -> None:
        self._matcher = matcher
        self._width = width
        self._ends = list(ends)
        self._bits = llguidance.numpy.allocate_token_bitmask(1, width)

    def masked(
        self, logits: NDArray[np.float32], tokens: Sequence[int], parents: Sequence[int]
    ) -> NDArray[np.float32]:
        """See ``Constraint.masked``."""
        rows = logits.copy()
        states: list[llguidance.LLMatcher | None] = [self._matcher]
        rows[0][~self._allowed(self._matcher)] = _NEVER
        for i, (token, parent) in enumerate(zip(tokens, parents, strict=True), 1):
            before = states[parent]
            state = None
            # What is behind a token that is not allowed is never reached.
            if before is not None and token not in self._ends and before.validate_tokens([token]):
                state = before.deep_copy()
                state.consume_token(token)
                rows[i][~self._allowed(state)] = _NEVER
            states.append(state)
        return rows

    def advance(self, tokens: Sequence[int]) -> None:
        """See ``Constraint.advance``."""
        for token in tokens:
            if token in self._ends:
                return
            if not self._matcher.consume_token(token):
                raise OmniDraftError(f"the answer left its grammar: {self._matcher.get_error()}")

    def _allowed(self, matcher: llguidance.LLMatcher) -> NDArray[np.bool_]:
        if matcher.is_stopped():
            allowed = np.zeros(self._width, np.bool_)
            allowed[self._ends] = True
            return allowed
        llguidance.numpy.fill_next_token_bitmask(matcher, self._bits)
        if matcher.is_error():
            raise OmniDraftError(f"the grammar is too much: {matcher.get_error():.300}")
        bits = np.unpackbits(self._bits[0].view(np.uint8), bitorder="little")[: self._width]
        allowed = bits.astype(np.bool_)
        allowed[self._ends] = allowed[self._ends[0]]
        return allowed


class _Tokens:
    """A target's tokens, as llguidance wants them."""

    def __init__(self, tokenizer: Tokenizer, width: int, end: int) -> None:
        self.eos_token_id = end
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [b""] * width
        self.special_token_ids = []
        surfaces = tokenizer.surfaces[:width]
        self._bytes: dict[bytes, int] = {}
        for token in range(width):
            surface = surfaces[token] if token < len(surfaces) else None
            if surface and token not in tokenizer.eos_ids:
                self.tokens[token] = surface
                if len(surface) == 1:
                    self._bytes.setdefault(surface, token)
            else:
                self.tokens[token] = f"<|{token}|>".encode()
                self.special_token_ids.append(token)

    def __call__(self, text: bytes | str) -> list[int]:
        # Asked for forced texts only, which nothing here forces; any spelling is one.
        data = text.encode() if isinstance(text, str) else text
        return [self._bytes[bytes([byte])] for byte in data if bytes([byte]) in self._bytes]
