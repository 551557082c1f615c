"""What a person types in ``omnidraft chat``, message by message: in a terminal, or line by line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from omnidraft.cli.interruption import Interrupted
from omnidraft.cli.output import errors
from omnidraft.runtime.errors import OptionError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

MessageReader = Callable[[bool], str | None]
"""Gives the next message, and None at the end. It is told whether Ctrl-C stopped the last answer:
one more then leaves."""


def message_reader() -> MessageReader:
    """Of the terminal that stdin is, or of the lines that it holds.

    Raises:
        OptionError: stdin is closed.
    """
    if sys.stdin is None:
        raise OptionError("stdin is closed: there is nothing to read from it")
    return _Terminal() if sys.stdin.isatty() else _lines()


def _lines() -> MessageReader:
    """A line is a message; one that ends with a backslash goes on in the next."""
    number = 0

    def line() -> str | None:
        nonlocal number
        number += 1
        data = sys.stdin.buffer.readline()
        try:
            text = data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise OptionError(
                f"stdin, line {number} is not valid UTF-8: byte {error.start} is "
                f"0x{data[error.start]:02x}. Convert it first, for example with iconv -t UTF-8"
            ) from error
        return text.removesuffix("\n").removesuffix("\r") if data else None

    def read(stopped: bool) -> str | None:
        message = text = line()
        while message is not None and text is not None and text.endswith("\\"):
            text = line()
            message = message[:-1] + "\n" + (text or "")
        return message

    return read


class _Terminal:
    """Lines with a history, which is kept nowhere else, and more lines where they are wanted.

    Its prompts go to stderr where stdout is no terminal: that is for answers alone.
    """

    def __init__(self) -> None:
        # Imported here: it takes time, and only a terminal needs it.
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        self._session: PromptSession[str] = PromptSession(
            "> ",
            prompt_continuation="  ",
            multiline=True,
            key_bindings=_keys(),
            enable_suspend=True,
            output=create_output(stdout=sys.stdout if sys.stdout.isatty() else sys.stderr),
        )

    def __call__(self, stopped: bool) -> str | None:
        while True:
            try:
                with _signals_of_the_loop() as watch:
                    return self._session.prompt(pre_run=watch, handle_sigint=False)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if stopped:
                    raise Interrupted(signal.SIGINT) from None
            stopped = True
            errors.print("Ctrl-C again leaves; so does Ctrl-D.", style="dim")


@contextmanager
def _signals_of_the_loop() -> Iterator[Callable[[], None]]:
    """Raise ``Interrupted`` when the prompt has ended; an event loop may swallow what it is handed.

    Gives what is to be called when the loop of the prompt runs.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    came: list[int] = []

    def watch() -> None:
        import asyncio

        from prompt_toolkit.application import get_app

        app = get_app()

        def end(number: int) -> None:
            came.append(number)
            if app.future is not None and not app.future.done():
                app.exit(result="", style="class:aborting")

        for number in handlers:
            asyncio.get_running_loop().add_signal_handler(number, end, number)

    try:
        yield watch
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            raise Interrupted(came[0])


def _keys() -> KeyBindings:
    from prompt_toolkit.enums import DEFAULT_BUFFER
    from prompt_toolkit.filters import has_focus
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)  # not while the history is searched

    @keys.add("enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c", filter=typing)
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys
