"""Help as people expect it, whatever the version of Typer makes of it.

Arguments go by their metavar, ``PROMPT`` and ``[PROMPT]``. What a line ends with, such as
``[default: 8bit]``, stays together.
"""

from __future__ import annotations

import re
from typing import Any, Final

from typer.core import TyperCommand

_NO_BREAK: Final = "\u00a0"
# Columns that a formatter keeps for names and margins, at most.
_NAMES: Final = 34


class Command(TyperCommand):
    """A command whose arguments all have a metavar."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What stands behind the command's name in its usage."""
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        names = [f"{p.metavar}" if p.required else f"[{p.metavar}]" for p in arguments]
        return ["[OPTIONS]", *names]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of arguments and options."""
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            name, text = record
            # Older versions of Typer leave an escape before a bracket.
            text = _bind(text.replace("\\[", "["), formatter.width - _NAMES)
            if parameter.param_type_name == "argument":
                rows["Arguments"].append((str(parameter.metavar), text))
            else:
                rows["Options"].append((name, text))
        for title, section in rows.items():
            if section:
                with formatter.section(title):
                    formatter.write_dl(section)
        formatter.buffer = [part.replace(_NO_BREAK, " ") for part in formatter.buffer]


def _bind(text: str, room: int) -> str:
    """Have a note at the end of ``text`` stay together where there is room for it."""
    note = re.search(r"\[[^\[\]]+\]$", text)
    if note is None or len(note[0]) > room:
        return text
    return text[: note.start()] + note[0].replace(" ", _NO_BREAK)
