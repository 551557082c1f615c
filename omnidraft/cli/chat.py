"""``omnidraft chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from omnidraft.cli import options as opt
from omnidraft.cli.conversation import Conversation
from omnidraft.cli.loading import generation_options, keep_what_was_learned, open_session
from omnidraft.cli.messages import message_reader
from omnidraft.cli.output import count, errors, print_error
from omnidraft.cli.prompt import read_messages
from omnidraft.cli.streaming import figures
from omnidraft.runtime.errors import OmniDraftError, OptionError
from omnidraft.runtime.models.catalogue import DEFAULT_DRAFTER, DEFAULT_QUANTIZATION
from omnidraft.runtime.options import (
    DEFAULT_DRAFT_CONFIDENCE,
    DEFAULT_DRAFT_LENGTH,
    sampling_parameters,
)
from omnidraft.runtime.storage.files import expanded


def chat(
    target: opt.Target,
    drafter: opt.Drafter = DEFAULT_DRAFTER,
    system: opt.System = None,
    messages: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Go on with a conversation that /save has written.",
            show_default=False,
        ),
    ] = None,
    max_new_tokens: opt.MaxNewTokens = 1024,
    temperature: opt.Temperature = 0.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    repetition_penalty: opt.Penalty = 1.0,
    seed: opt.Seed = None,
    draft_length: opt.DraftLength = str(DEFAULT_DRAFT_LENGTH),
    draft_confidence: opt.DraftConfidence = DEFAULT_DRAFT_CONFIDENCE,
    tree: opt.Tree = None,
    no_draft: opt.NoDraft = False,
    verification: opt.Verification = "exact",
    stop: opt.Stop = [],  # noqa: B006  Typer makes a list of its own for each call.
    quantization: opt.Weights = DEFAULT_QUANTIZATION,
    engine: opt.RunBy = None,
    threads: opt.Threads = None,
    context: opt.Context = None,
    adapter: opt.AdapterName = None,
    learn: opt.Learn = False,
) -> None:
    """Talk with a model.

    Enter sends a message; Alt-Enter, or a backslash before Enter, begins a new line. Ctrl-C stops
    an answer, twice leaves, and so does Ctrl-D. /help lists the commands. Without a terminal each
    line of stdin is a message.

    Colours in a terminal are those of generate. The turns before are not read again. With --seed
    every answer takes that seed, and /retry the next ones.

    \b
    Examples:
      omnidraft chat --target smollm2-135m
      omnidraft chat --target model.gguf --system "Be brief." --temperature 0.7
      printf 'Why?\\nAnd then?\\n' | omnidraft chat --target smollm2-135m
    """
    options = generation_options(
        max_new_tokens,
        sampling_parameters(temperature, top_k, top_p, min_p, repetition_penalty),
        verification,
        seed,
        "0" if no_draft else draft_length,
        draft_confidence,
        raw=False,
        stop=stop,
        tree=None if no_draft else tree,
    )
    read = message_reader()
    if str(messages) == "-":
        raise OptionError("what is said now comes from stdin: give --messages a file")
    said = read_messages(messages) if messages else []
    session = open_session(
        target,
        drafter if options.draft_length != 0 else None,
        quantization,
        engine,
        threads,
        context,
        quiet=False,
        keep_ngrams=not options.repeatable,
        adapter=adapter,
        learn=learn,
    )
    if not session.target.tokenizer.has_chat_template:
        raise OmniDraftError(
            f"{target} has no chat template, so it cannot tell who says what. `omnidraft generate "
            "--raw` continues a text with it"
        )
    conversation = Conversation(session, options, said)
    if system is not None:
        conversation.set_system(system)
    talk = _Talk(conversation)
    try:
        talk.begin()
        while (text := read(talk.stopped)) is not None:
            if text.strip() and not talk.take(text):
                break
    finally:
        keep_what_was_learned(session, learn)


class _Talk:
    """What is said, and the commands among it."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._watched = sys.stdin.isatty()
        self.stopped = False
        """Whether the answer that was made last, and just now, was stopped."""

    def begin(self) -> None:
        """Say what to do, and answer what is open in a conversation that goes on."""
        said = self._conversation.messages
        if self._watched:
            going_on = f"{count(len(said), 'message')} so far. " if said else ""
            self._say(f"{going_on}/help lists the commands; Ctrl-D leaves.")
        if said and said[-1]["role"] == "user":
            self.take("/retry")

    def take(self, text: str) -> bool:
        """Answer a message, or do what a command says; returns whether the talk goes on.

        Raises:
            OmniDraftError: it cannot be done; where somebody watches that is only said.
        """
        self.stopped = False
        try:
            if not text.startswith("/"):
                self._answer(lambda: self._conversation.ask(text))
                return True
            name = text.split(None, 1)[0]
            argument = text.removeprefix(name)
            if name == "/quit":
                return False
            if name not in _COMMANDS:
                raise OptionError(
                    f"there is no command {name:.40}; /help lists them. A message "
                    "that begins with / needs a space before it"
                )
            _COMMANDS[name][2](self, argument.strip())
        except OmniDraftError as error:
            if not self._watched:
                raise
            print_error(str(error))
        return True

    def _answer(self, answer: Callable[[], None]) -> None:
        answer()
        self.stopped = self._conversation.stopped
        if self.stopped:
            self._say("Stopped. /retry answers again, /undo takes the message back.")

    def _system(self, text: str) -> None:
        self._conversation.set_system(text)
        self._say("The system message is set." if text else "The system message is gone.")

    def _undo(self, _: str) -> None:
        text = " ".join(self._conversation.undo().split())
        self._say(f"Taken back: {text if len(text) <= 60 else text[:59] + '…'}")

    def _retry(self, _: str) -> None:
        self._answer(self._conversation.retry)

    def _new(self, _: str) -> None:
        self._conversation.begin_anew()
        self._say("A new conversation.")

    def _save(self, name: str) -> None:
        if not name:
            raise OptionError("/save needs the name of a file: /save talk.json")
        self._conversation.save(expanded(name))
        self._say(f"{count(len(self._conversation.messages), 'message')} saved to {name}.")

    def _learn(self, choice: str) -> None:
        learner = self._conversation.session.learner
        if choice not in ("on", "off"):
            raise OptionError(f"/learn is on or off, not {choice!r}")
        if learner is None or learner.trainer is None:
            raise OmniDraftError(
                "nothing learns in this conversation: begin it with --adapter NAME --learn"
            )
        learner.paused = choice == "off"
        self._say(
            "The drafter learns nothing from the answers that come."
            if learner.paused
            else "The drafter learns from the answers that come."
        )

    def _stats(self, _: str) -> None:
        talk = self._conversation
        stats = talk.statistics
        read = stats.prompt_tokens - stats.prompt_kept
        self._say(f"{count(talk.answers, 'answer')}: {figures(stats)}")
        self._say(
            f"{count(read, 'token')} of prompts read, {count(stats.prompt_kept, 'token')} kept "
            "from before"
        )
        most = talk.session.target.model.max_length
        self._say(f"{talk.context_used():,} of {count(most, 'token')} of context used")

    def _help(self, _: str) -> None:
        for name, (takes, does, _command) in _COMMANDS.items():
            self._say(f"{name + ' ' + takes:<14} {does}")
        self._say(f"{'/quit':<14} leave; so do Ctrl-D, and Ctrl-C twice")
        if self._watched:
            self._say("Alt-Enter, or a backslash before Enter, begins a new line.")

    def _say(self, text: str) -> None:
        errors.print(text, style="dim", soft_wrap=True)


_COMMANDS: dict[str, tuple[str, str, Callable[[_Talk, str], None]]] = {
    "/system": ("TEXT", "set the system message; without a text: take it away", _Talk._system),
    "/undo": ("", "take the last message and its answer back", _Talk._undo),
    "/retry": ("", "answer the last message again; sampling, with another seed", _Talk._retry),
    "/new": ("", "begin a new conversation", _Talk._new),
    "/save": ("FILE", "write the conversation as JSON; --messages reads it", _Talk._save),
    "/learn": ("on|off", "whether the drafter learns from answers", _Talk._learn),
    "/stats": ("", "what was decoded, and how fast", _Talk._stats),
    "/help": ("", "this list", _Talk._help),
}
