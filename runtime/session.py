"""A target and a drafter, paired and ready to answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omnidraft._native import Lookup, MappingRule, NgramCache
from omnidraft.runtime.answer import Answer, AnswerText, Piece
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.decoding.kept_texts import KeptTexts
from omnidraft.runtime.decoding.lease import DEFAULT_WAIT, Lease
from omnidraft.runtime.errors import CancelledError, OmniDraftError, OptionError
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.models.cache import cache_folder
from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.pairing import Pairing
from omnidraft.runtime.statistics import Statistics
from omnidraft.runtime.text.chat import Message
from omnidraft.runtime.text.tool_probes import Tool

if TYPE_CHECKING:
    from omnidraft.runtime.learning.learner import AdapterChoice, Learner

Prompt = str | Sequence[Message] | Sequence[int]
"""A text, which is one chat message where the model has a chat template; the messages of a
conversation, each ``{"role": …, "content": …}``; or token ids of the target."""


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
        kept: other texts of the target's, so that conversations may alternate. Sessions of one
            target may share it.

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
        kept: KeptTexts | None = None,
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
        self._wait = wait
        # Another model may not give the same answer.
        self._kept = kept if target.batch_invariant else None
        lease = self._lease()
        self._pairing: Pairing | None = None
        if drafter is not None:
            # An adapter changes the drafter, from which an answer may be under way.
            with lease if adapter is not None else contextlib.nullcontext():
                self._pairing = Pairing(
                    target, drafter, rule, ngram_folder, special_text, learner_of
                )

    @property
    def learner(self) -> Learner | None:
        """What learns, or has learned, with an adapter."""
        return self._pairing.learner if self._pairing else None

    def plain_seconds(self, context: int) -> float | None:
        """Seconds that plain decoding is expected to take for a token, in the target alone.

        Args:
            context: tokens before it.

        Returns:
            What passes over one token cost here, by the curves that choose draft lengths; None
            where nothing chose them yet.
        """
        costs = self._pairing.costs if self._pairing else None
        return None if costs is None else costs.target(context).seconds(1)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that the models hold, and of the texts that are kept."""
        models = [each.model for each in (self.target, self.drafter) if each is not None]
        # Some engines keep their KV cache to themselves.
        held = sum(getattr(each, "kv_bytes_per_token", 0) * each.length for each in models)
        return held + (self._kept.nbytes if self._kept is not None else 0)

    @property
    def cache(self) -> NgramCache | None:
        """The n-gram cache of the pair; None without a drafter."""
        return self._pairing.cache if self._pairing else None

    @cache.setter
    def cache(self, cache: NgramCache) -> None:
        assert self._pairing is not None
        self._pairing.cache = cache

    def encode(self, prompt: Prompt, *, raw: bool = False, tools: Sequence[Tool] = ()) -> list[int]:
        """Target tokens of a prompt, through the chat template where there is one.

        Args:
            raw: take a text without the template; names of special tokens in it are these tokens,
                which they are not in a message.
            tools: what the model may call, of messages.

        Raises:
            OmniDraftError: text that is not valid Unicode, or for which the model lacks a token;
                messages for a model without a chat template, or that its template refuses or would
                leave out.
        """
        tokenizer = self.target.tokenizer
        if isinstance(prompt, str):
            if tokenizer.has_chat_template and not raw:
                tokens = tokenizer.encode_chat([{"role": "user", "content": prompt}])
            else:
                # What is written by hand to be continued may be what a template would have made.
                tokens = tokenizer.encode(prompt, parse_special=raw)
            if not tokens and tokenizer.bos_id is not None:
                tokens = [tokenizer.bos_id]
        else:
            tokens = self._encode_sequence(prompt, tools)
        width = self.target.model.vocab_size
        if unknown := sorted({token for token in tokens if not 0 <= token < width}):
            if not isinstance(prompt, str):
                raise OmniDraftError(
                    f"the prompt holds the token id {unknown[0]}, and the model's vocabulary ends "
                    f"at {width} tokens, which begin with 0"
                )
            names = ", ".join(repr(tokenizer.tokens[token]) for token in unknown[:3])
            raise OmniDraftError(
                f"the prompt holds {names}, which the tokenizer knows and the model does not: its "
                f"vocabulary ends at {width} tokens. Leave it out of the prompt, or put the "
                "model's own tokenizer beside its weights"
            )
        return tokens

    def _encode_sequence(
        self, prompt: Sequence[Message] | Sequence[int], tools: Sequence[Tool]
    ) -> list[int]:
        tokens: list[int] = []
        messages: list[Message] = []
        if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Sequence):
            raise OptionError(
                "a prompt must be a text, a list of messages or a list of token ids, not "
                f"{prompt!r}"
            )
        for each in prompt:
            if isinstance(each, int) and not isinstance(each, bool):
                tokens.append(each)
            elif isinstance(each, dict) and all(
                isinstance(each.get(k), str) for k in ("role", "content")
            ):
                messages.append(each)
            else:
                raise OptionError(
                    "a prompt must be a text, a list of messages, each a dict with a role and a "
                    f"content that are texts, or a list of token ids; it holds {each!r}"
                )
        if messages and tokens:
            raise OptionError("a prompt must hold messages or token ids, not both")
        if not messages:
            return tokens
        self.target.tokenizer.check_roles(messages)
        return self.target.tokenizer.encode_chat(messages, tools)

    def stream(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        cancelled: threading.Event | None = None,
        begun: Callable[[SpeculativeDecoder], object] = lambda decoder: None,
    ) -> Generator[Piece, None, None]:
        """Yield the answer as it comes; ``last`` then holds statistics and the finish reason.

        The joined texts are the answer; special tokens have none. The models are in use from the
        first piece on until the last, or until the iterator is closed or dropped. An answer that is
        broken off or cancelled is not learned from.

        Args:
            cancelled: ends the answer within a round once it is set, from any thread.
            begun: told the answer's own decoder when its turn has come; ``last`` is another's as
                soon as another answer begins.

        Raises:
            ModelInUseError: another answer did not end in time: see ``Lease``.
            ContextOverflowError, OmniDraftError: see ``SpeculativeDecoder.generate``.
        """
        try:
            with self._answering(options or GenerationOptions(), cancelled) as answering:
                begun(answering.decoder)
                yield from answering(prompt)
        except CancelledError:
            return

    def generate(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        cancelled: threading.Event | None = None,
    ) -> Answer:
        """The whole answer at once.

        Raises:
            ModelInUseError, ContextOverflowError, OmniDraftError: see ``stream``.
        """
        try:
            with self._answering(options or GenerationOptions(), cancelled) as answering:
                pieces = list(answering(prompt))
        except CancelledError:  # while it waited for its turn
            return Answer("", [], "cancelled", Statistics())
        decoder = answering.decoder
        return Answer(
            "".join(piece.text for piece in pieces),
            [piece.token for piece in pieces if piece.token is not None],
            decoder.finish_reason,
            decoder.statistics,
            None
            if answering.options.logprobs is None
            else [piece.logprobs for piece in pieces if piece.logprobs is not None],
        )

    def forget(self) -> None:
        """Empty the KV caches.

        They hold the last prompt and its answer, and the next answer begins with what its prompt
        has in common with them, if the target is batch-invariant. Its tokens are the same, but its
        prompt takes less time.

        Raises:
            ModelInUseError: see ``stream``.
        """
        with self._lease():
            for loaded in (self.target, *([self.drafter] if self.drafter else [])):
                loaded.model.truncate(0)

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

    def close(self) -> None:
        """End learning, and keep what was learned.

        Raises:
            ModelInUseError, OmniDraftError: see ``save``.
        """
        if self.learner is not None:
            with self._lease():
                self.learner.close()

    def _lease(self, cancelled: threading.Event | None = None) -> Lease:
        models = [self.target, *([self.drafter] if self.drafter else [])]
        return Lease([each.model for each in models], self._wait, cancelled)

    @contextlib.contextmanager
    def _answering(
        self, options: GenerationOptions, cancelled: threading.Event | None
    ) -> Iterator[_Answering]:
        """Hold the models for one answer, and learn from it when it was made to its end."""
        learner = self.learner
        with self._lease(cancelled) as lease:
            try:
                if self._pairing:
                    self._pairing.begin()
                self.last = self._decoder(options, lease)
                yield _Answering(self, self.last, options, cancelled)
            except BaseException:
                if learner:
                    learner.abandon()
                raise
            if learner and self.last.finish_reason == "cancelled":
                learner.abandon()
            elif learner:
                learner.end()

    def _decoder(self, options: GenerationOptions, lease: Lease) -> SpeculativeDecoder:
        pairing = self._pairing if options.draft_length != 0 else None
        buffer = self.learner.buffer if self.learner else None
        return SpeculativeDecoder(
            self.target.model,
            # Its own: answers may be paused, and others made meanwhile.
            pairing.drafting(options, Lookup(self.target.model.vocab_size)) if pairing else None,
            sampling=options.sampling,
            verification=options.verification,
            seed=options.seed,
            observer=buffer.observe if buffer else None,
            steps=buffer.trace if buffer else None,
            lease=lease,
            logprobs=options.logprobs,
            proposals=options.proposals,
            constraint=options.constraint,
            keep=self.target.batch_invariant,
            kept=self._kept,
        )


@dataclass(frozen=True)
class _Answering:
    """One answer of a session, under its lease."""

    session: Session
    decoder: SpeculativeDecoder
    options: GenerationOptions
    cancelled: threading.Event | None

    def __call__(self, prompt: Prompt) -> Iterator[Piece]:
        session, options, decoder = self.session, self.options, self.decoder
        tokenizer, learner = session.target.tokenizer, session.learner
        told = 0
        text = AnswerText(tokenizer, options.stop)
        tokens = session.encode(prompt, raw=options.raw)
        for emitted in decoder.generate(
            tokens,
            options.max_new_tokens,
            tuple(tokenizer.eos_ids),
            self.cancelled,
            text.ends_with,
        ):
            if learner:
                learner.first_token()
            for piece in text.pieces(emitted):
                told += piece.token is not None
                yield piece
        for piece in text.finish():
            told += piece.token is not None
            yield piece
        if text.cut:
            decoder.finish_reason = "stop"
            # Those that were held back and turned out to stand behind the cut.
            decoder.statistics.target_tokens = told


def default_ngram_folder() -> Path:
    """Where sessions of the command line keep their n-gram caches."""
    return cache_folder() / "ngrams"
