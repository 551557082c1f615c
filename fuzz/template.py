"""Chat templates, given a short conversation."""

from __future__ import annotations

import random
import re

from fuzz.files import refusing
from omnidraft.runtime.text.chat import render_chat

MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hello\n**you** é"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."},
    {"role": "user", "content": "Bye"},
]

TOKEN = re.compile(r"\{[%{#]-?|-?[%}#]\}|'[^'\n]*'|\"[^\"\n]*\"|\w+|\s+|.", re.DOTALL)
STATEMENTS = (
    "for x in messages",
    "for x in range(9999999)",
    "for x in x recursive",
    "for a, b in x|items",
    "endfor",
    "if x",
    "else",
    "endif",
    "break",
    "set x = 'aa a'",
    "set x = ['a', 9]",
    "set x = 99999",
    "set x = messages",
    "set x = x ~ x",
    "set x = [x, x]",
    "set x = x + x",
    "set x = x * x",
    "set x = {'a': x, x: 1}",
    "set x",
    "endset",
    "set n = namespace(x=messages)",
    "set n.x = n.x ~ n.x",
    "set n.n = n",
    "macro m(x)",
    "endmacro",
    "call m(x)",
    "endcall",
    "filter upper",
    "endfilter",
    "block b",
    "endblock",
    "generation",
    "endgeneration",
    "raw",
    "endraw",
)
EXPRESSIONS = (
    *("x", "messages", "messages[0].content", "loop", "loop(x)", "loop.cycle(x, x)", "n", "n.x"),
    *(
        "m(x)",
        "m(m(x))",
        "caller()",
        "self.b()",
        "varargs",
        "x.__class__",
        "x()",
        "x[x]",
        "x[::-1]",
    ),
    *("9999", "9 ** 9 ** 9", "'a' * 99999", "'%99999d' % 1", "'%*d' % (99999, 1)", "1 << 99999"),
    *("'{:>99999}'.format(1)", "'{0.a}'.format(x)", "x.split('')", "x.replace('', x)", "x.join(x)"),
    *("dict(a=x, **x)", "cycler(x, x).next()", "joiner(x)()", "strftime_now('%Y' * 999)"),
    *("raise_exception(x)", "x.append(x)", "x is in x", "x == x", "x in x", "x < x", "not x"),
)
FILTERS = (
    *("join(x)", "list", "tojson", "tojson(indent=999)", "replace('', 'aaaa')", "batch(3, x)"),
    *("map(attribute='content')", "map('upper')", "select", "rejectattr('a')", "format(x, x)"),
    *("sum(start=x)", "groupby('role')", "center(999)", "indent(999)", "sort", "unique", "xmlattr"),
    *("urlencode", "string", "int", "float", "round(99)", "filesizeformat", "escape", "safe"),
    *("slice(3)", "items", "dictsort", "reverse", "first", "last", "length", "trim", "title"),
    *("truncate(9)", "wordwrap(1)", "default(x)", "min", "max", "random", "attr('format')"),
)


def mutated(data: bytes, seed: int, most: int) -> bytes | None:
    """A template with one to three changes of its parts; None where it would be too long."""
    chance = random.Random(seed)
    parts = TOKEN.findall(data.decode("utf-8", "surrogateescape"))
    for _ in range(chance.choice((1, 1, 2, 3))):
        place = chance.randrange(len(parts) + 1)
        end = min(len(parts), place + chance.choice((0, 0, 1, 1, 2, 9)))
        taken = chance.randrange(len(parts) + 1)
        new = chance.choice(
            (
                "".join(parts[taken : taken + chance.choice((1, 3, 9, 30))]),
                "{% " + chance.choice(STATEMENTS) + " %}",
                "{{ " + chance.choice(EXPRESSIONS) + " }}",
                chance.choice(EXPRESSIONS),
                "|" + chance.choice(FILTERS),
                "",
            )
        )
        parts[place:end] = [new]
    changed = "".join(parts).encode("utf-8", "surrogateescape")
    return changed if len(changed) <= most else None


def check(data: bytes) -> None:
    with refusing():
        render_chat(
            data.decode("utf-8", "surrogateescape"),
            MESSAGES,
            special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        )
