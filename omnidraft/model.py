"""What a program embeds: a loaded target with its drafter, one call for each thing that it does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import operator
import re
import threading
import weakref
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self, TypedDict, Unpack, get_args

from omnidraft.conversing import Chat
from omnidraft.runtime.answer import Answer, Piece
from omnidraft.runtime.errors import OmniDraftError, OptionError
from omnidraft.runtime.memory import give_back_memory
from omnidraft.runtime.models.progress import Progress
from omnidraft.runtime.options import (
    DEFAULT_DRAFT_CONFIDENCE,
    DEFAULT_DRAFT_LENGTH,
    DraftLength,
    GenerationOptions,
    sampling_parameters,
)
from omnidraft.runtime.session import Prompt, Session
from omnidraft.runtime.text.chat import Message
from omnidraft.streams import AsyncStream, Stream

if TYPE_CHECKING:
    from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
    from omnidraft.runtime.engines import Engine
    from omnidraft.runtime.models.catalogue import Quantization

log = logging.getLogger("omnidraft")


class Options(TypedDict, total=False):
    """What ``Model.generate``, ``stream`` and ``astream`` take beside the prompt.

    Named as the command's options: ``max_new_tokens`` (256), ``temperature`` (0: greedy),
    ``top_k``, ``top_p``, ``min_p``, ``repetition_penalty``, ``seed``, ``draft_length`` ("auto", or
    0 to 32), ``draft_confidence``, ``tree`` (tokens that each round proposes as a tree), ``raw``
    (no chat template: continue the text), ``stop`` (a text or several, before the first of which
    the answer ends), ``logprobs`` (tell those of the tokens, and of so many alternatives).
    """

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None
    draft_length: DraftLength
    draft_confidence: float
    tree: int | None
    raw: bool
    stop: str | Sequence[str]
    logprobs: int | None


_SHAPING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class Model:
    """A target that answers, faster through a drafter: see ``omnidraft.load``.

    with omnidraft.load("smollm2-135m") as model:
        answer = model.generate("Why is the sky blue?", max_new_tokens=200)
        print(answer.text, answer.finish_reason)

    It may be used from several threads; one answer is made at a time, and the others wait.
    """

    def __init__(self, session: Session) -> None:
        self._open_session: Session | None = session
        self._running: set[threading.Event] = set()
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Answer:
        """The whole answer.

            model.generate([{"role": "user", "content": "Hello"}], temperature=0.7, seed=1).text

        Raises:
            OptionError: an option is unknown or out of its range; nothing was computed.
            ModelInUseError: other answers did not end in time.
            ContextOverflowError: the prompt does not fit the context.
            OmniDraftError: see ``Session.encode``; or the model is closed.
        """
        session, checked = self._session, _checked(options)
        with self._cancellable() as cancelled:
            answer = session.generate(prompt, checked, cancelled=cancelled)
        log.debug("%d tokens, %s", len(answer.token_ids), answer.finish_reason)
        return answer

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """The answer piece by piece, as it comes.

            for piece in model.stream("Why is the sky blue?"):
                print(piece.text, end="", flush=True)

        Closing or dropping the stream breaks the answer off. Once it has ended it has a
        ``finish_reason``, ``stats`` and ``token_ids``, as an answer has.

        Raises:
            See ``generate``; options are checked at once, the rest with the first piece.
        """
        _ = self._session
        decoders: list[SpeculativeDecoder] = []
        stream = Stream(self._pieces(prompt, _checked(options), decoders), decoders)
        self._streams.add(stream)
        return stream

    def astream(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncStream:
        """The same for asyncio: the answer is made on a thread, the event loop stays free.

            async for piece in model.astream("Why is the sky blue?"):
                ...

        A task that is cancelled, or leaves the loop, ends the answer within a round.

        Raises:
            See ``stream``.
        """
        _ = self._session
        decoders: list[SpeculativeDecoder] = []
        pieces = self._pieces_asynchronously(prompt, _checked(options), decoders)
        return AsyncStream(pieces, decoders)

    def chat(
        self,
        *,
        system: str | None = None,
        messages: Sequence[Message] = (),
        **options: Unpack[Options],
    ) -> Chat:
        """A conversation, whose earlier turns the KV caches keep.

            chat = model.chat(system="Be brief.", max_new_tokens=100)
            chat.ask("Why is the sky blue?").text

        Args:
            system: what the model is told first.
            messages: what was said before.
            options: of each answer.

        Raises:
            OptionError: see ``generate``.
            OmniDraftError: the model has no chat template, or its template refuses these messages.
        """
        told: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        _checked(options)
        told += messages
        self._session.encode([*told, {"role": "user", "content": "?"}])
        return Chat(self, told, options)

    def cancel(self) -> None:
        """End the answers under way, from any thread: their finish reason is "cancelled"."""
        for cancelled in list(self._running):
            cancelled.set()

    def encode(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """The target's token ids of a prompt, as ``generate`` would read it."""
        return self._session.encode(prompt, raw=raw)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of token ids, special ones left out; invalid UTF-8 becomes U+FFFD.

        Raises:
            OptionError: these are no token ids of the target.
        """
        target = self._session.target
        return target.tokenizer.decode(_token_ids(token_ids, target.model.vocab_size))

    def save(self) -> None:
        """Keep what an adapter has learned so far: see ``Session.save``."""
        self._session.save()

    def close(self) -> None:
        """End the answers under way, keep what was learned, and give the memory back.

        Raises:
            OmniDraftError: what was learned cannot be written, or somebody else is using the
                models that are to learn. It may be called again.
        """
        session = self._open_session
        if session is None:
            return
        self.cancel()
        for stream in list(self._streams):
            stream._close_if_paused()
        session.close()
        self._open_session = None
        del session  # the last of its owners
        give_back_memory()

    def __enter__(self) -> Self:
        _ = self._session
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except OmniDraftError as error:
            if kind is None:
                raise
            log.warning("closing: %s", error)  # what went wrong before matters more

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a model can be neither pickled nor copied: it holds what its engine has loaded. Load "
            "it where it is wanted: omnidraft.load(…)"
        )

    @property
    def _session(self) -> Session:
        if self._open_session is None:
            raise OmniDraftError("the model is closed; load it again")
        return self._open_session

    @contextlib.contextmanager
    def _cancellable(self) -> Iterator[threading.Event]:
        cancelled = threading.Event()
        self._running.add(cancelled)
        try:
            yield cancelled
        finally:
            self._running.discard(cancelled)

    # What makes the pieces knows nothing of the stream, which it would keep from being dropped.
    def _pieces(
        self, prompt: Prompt, options: GenerationOptions, decoders: list[SpeculativeDecoder]
    ) -> Generator[Piece, None, None]:
        with self._cancellable() as cancelled:
            yield from self._session.stream(
                prompt, options, cancelled=cancelled, begun=decoders.append
            )

    async def _pieces_asynchronously(
        self, prompt: Prompt, options: GenerationOptions, decoders: list[SpeculativeDecoder]
    ) -> AsyncGenerator[Piece, None]:
        session = self._session
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()

        failure: list[BaseException] = []

        with self._cancellable() as cancelled:

            def tell(piece: Piece | None) -> None:
                try:
                    loop.call_soon_threadsafe(pieces.put_nowait, piece)
                except RuntimeError:  # the loop is closed, and nobody listens any more
                    cancelled.set()

            def work() -> None:
                try:
                    for piece in session.stream(
                        prompt, options, cancelled=cancelled, begun=decoders.append
                    ):
                        tell(piece)
                except BaseException as error:
                    failure.append(error)
                tell(None)

            # A thread of its own: those of the loop's pool may all be waiting for this answer.
            thread = threading.Thread(target=work, name="omnidraft answer", daemon=True)
            thread.start()
            try:
                while (piece := await pieces.get()) is not None:
                    yield piece
            finally:
                cancelled.set()
                if not loop.is_closed():
                    await asyncio.shield(asyncio.to_thread(thread.join))
        if failure:
            raise failure[0]


def load(
    target: str | Path,
    drafter: str | Path | None = "default",
    *,
    quantization: Quantization = "auto",
    engine: Engine | None = None,
    threads: int | None = None,
    context: int | None = None,
    adapter: str | None = None,
    learn: bool = False,
    wait: float = 60.0,
) -> Model:
    """Open a target and a drafter, each by name, folder, GGUF file or Hugging Face id.

        model = omnidraft.load("model.gguf", quantization="4bit", threads=4, adapter="work")

    Models are fetched and converted at first use. What that does is told to the logger
    ``omnidraft``.

    Args:
        target: whose answers are wanted.
        drafter: None decodes plainly.
        quantization: of a target that is converted here.
        engine: what runs the target; None: what suits it.
        threads: for one pass of the target; None: one for each physical core that this process may
            use, without little ones (``omnidraft doctor`` says how many).
        context: longest sequence of the target, in tokens; None: the model's own. Memory for it is
            taken as it fills.
        adapter: name of what the drafter has learned, as ``omnidraft adapters list`` shows it.
        learn: go on learning into the adapter, between answers.
        wait: seconds that an answer waits for another one to end; 0: it is refused meanwhile.

    Raises:
        OptionError: an option does not fit; it is named.
        OmniDraftError: a model cannot be found, fetched or read; the message says what to do.
    """
    from omnidraft.opening import adapter_choice, open_pair
    from omnidraft.runtime.engines import Engine
    from omnidraft.runtime.models.catalogue import QUANTIZATIONS

    if quantization not in QUANTIZATIONS:
        raise OptionError(
            f"quantization must be one of {', '.join(QUANTIZATIONS)}, not {quantization!r}"
        )
    if engine is not None and engine not in (engines := get_args(Engine)):
        raise OptionError(f"engine must be one of {', '.join(engines)}, not {engine!r}")
    if (
        isinstance(wait, bool)
        or not isinstance(wait, int | float)
        or not 0 <= wait <= threading.TIMEOUT_MAX
    ):
        raise OptionError(f"wait must be a number of seconds from 0 on, not {wait!r}")
    if adapter is not None and not isinstance(adapter, str):
        raise OptionError(f"adapter must be a name, not {adapter!r}")
    for name, place in (("target", target), ("drafter", drafter or "default")):
        if not isinstance(place, str | Path):
            raise OptionError(f"{name} must be a name or a path, not {place!r}")
    for name, value, least in (("threads", threads, 1), ("context", context, 2)):
        if value is not None and (type(value) is not int or value < least):
            raise OptionError(f"{name} must be a whole number from {least} on, not {value!r}")
    if learn and adapter is None:
        raise OptionError("learn needs the name of an adapter to learn: adapter=…")
    if adapter is not None and drafter is None:
        raise OptionError("an adapter is of a drafter: give one, or leave adapter out")
    choice = adapter_choice(adapter, learn) if adapter is not None else None
    target_model, drafter_model = open_pair(
        str(target),
        None if drafter is None else str(drafter),
        quantization,
        engine,
        threads,
        context=context,
        learnable=adapter is not None,
        progress=_logging(),
    )
    return Model(Session(target_model, drafter_model, adapter=choice, wait=wait))


def _logging() -> Progress:
    """What logs each step once, as it begins."""
    last = ""

    def progress(step: str, fraction: float | None) -> None:
        nonlocal last
        if step != last:
            log.info("%s", step)
        last = step

    return progress


def _checked(options: Options) -> GenerationOptions:
    if unknown := set(options) - Options.__annotations__.keys():
        known = ", ".join(Options.__annotations__)
        raise OptionError(f"there is no option {', '.join(sorted(unknown))}; there are {known}")
    shaping = {name: value for name, value in options.items() if name in _SHAPING}
    try:
        sampling = sampling_parameters(**shaping)  # type: ignore[arg-type]
    except OptionError as error:
        # The core names options as the command does.
        said = re.sub(r"top-k|top-p|min-p|repetition-penalty", _as_keyword, str(error))
        raise OptionError(said) from error
    return GenerationOptions(
        max_new_tokens=options.get("max_new_tokens", 256),
        sampling=sampling,
        seed=options.get("seed"),
        draft_length=options.get("draft_length", DEFAULT_DRAFT_LENGTH),
        draft_confidence=options.get("draft_confidence", DEFAULT_DRAFT_CONFIDENCE),
        tree=options.get("tree"),
        raw=options.get("raw", False),
        stop=options.get("stop", ()),
        logprobs=options.get("logprobs"),
    )


def _token_ids(token_ids: Iterable[int], width: int) -> list[int]:
    if isinstance(token_ids, str | bytes | bytearray) or not isinstance(token_ids, Iterable):
        raise OptionError(f"token_ids must be a list of token ids, not {token_ids!r}")
    checked = []
    for each in token_ids:
        # Not only int: arrays hold whole numbers of their own.
        if isinstance(each, bool) or not hasattr(each, "__index__"):
            raise OptionError(f"token_ids must hold token ids, not {each!r}")
        if not 0 <= (token := operator.index(each)) < width:
            raise OptionError(
                f"token_ids holds {token}, and the model's vocabulary ends at {width} tokens, "
                "which begin with 0"
            )
        checked.append(token)
    return checked


def _as_keyword(found: re.Match[str]) -> str:
    return re.sub("[- ]", "_", found[0])
