"""Jinja templates that end: what they compute is counted, and too much of it is an error.

A chat template is a program that came with a model. Jinja's sandbox keeps it from the machine's
files, but not from looping for days or filling the memory. Here whatever can take long spends from
a ``Budget``. What is not counted takes a time that the length of the template bounds, and a turn of
a loop or macro spends for what is in its body.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from omnidraft.runtime.text.budget import CHARACTERS, Budget, TooMuchError, check_width

MOST_CHARACTERS = 100_000
"""Of a template; the longest that models come with have a fifth of it."""
_PARTS = 20
"""Parts of a body that cost a unit each turn."""

# Filters that look at a sequence only, or only at each of its elements; those that take a width
# or a count; slow ones; and those whose time or result is out of proportion, which no chat needs.
_ONE = {"attr", "count", "d", "default", "first", "items", "last", "length", "random"}
_SHALLOW = {
    *("batch", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice"),
}
_WIDE = {"batch", "center", "indent", "round", "slice", "tojson"}
_SLOW = {"dictsort", "groupby", "max", "min", "sort", "title", "unique", "urlencode", "xmlattr"}
_REFUSED = {"pprint", "striptags", "urlize", "wordcount", "wordwrap"}
_WIDE_METHODS = {"center", "ljust", "rjust", "to_bytes", "zfill"}
_REFUSED_METHODS = {"encode", "expandtabs", "format_map", "maketrans", "translate"}

# Filters that only ``_Counting`` uses: no template can spell their names.
_READ, _MADE, _JOINED, _TURN = "is read", "is made", "is joined", "is a turn"

_spent: ContextVar[Budget] = ContextVar("the budget of the rendering that is under way")


def render(text: str, given: Mapping[str, Any]) -> str:
    """Render a template.

    Raises:
        jinja2.TemplateError: it is no template, too long, or computes too much.
        Exception: whatever else a program can raise.
    """
    template = _compiled(text)
    before = _spent.set(Budget(given))
    try:
        return template.render(given)
    finally:
        _spent.reset(before)


@functools.lru_cache(maxsize=8)
def _compiled(text: str) -> jinja2.Template:
    if len(text) > MOST_CHARACTERS:
        raise TooMuchError(f"it is longer than {MOST_CHARACTERS:,} characters")
    environment = _Environment()
    return environment.from_string(_Counting().visit(environment.parse(text)))


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, as transformers sets it up, in which what is computed is paid for."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _Generation],
            # Nothing is computed while the template is compiled. A ``finalize`` that takes the
            # context keeps constants from it, too.
            optimized=False,
            finalize=pass_context(lambda context, value: _read(value)),
        )
        self.globals |= {
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form[:1000]),
        }
        del self.globals["lipsum"]
        self.filters["tojson"] = _to_json
        self.filters = {
            name: _counted(name, function)
            for name, function in self.filters.items()
            if name not in _REFUSED
        }
        self.filters |= {
            _READ: _read,
            _MADE: lambda value: _spent.get().made(value),
            _JOINED: _join,
            _TURN: lambda units: _spent.get().spend(units),
        }
        self.tests = {name: _counted_test(test) for name, test in self.tests.items()}

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            _spent.get().read(argument)
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # Jinja wraps str.format.
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | int | list | tuple | dict):
            args = _checked_arguments(owner, method.__name__, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        return _spent.get().made(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _spent.get().operating(operator, left, right)
        return super().call_binop(context, operator, left, right)


def _checked_arguments(
    owner: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Spend what a method of a built-in value costs; the arguments to call it with."""
    budget = _spent.get()
    if name in _WIDE_METHODS:
        check_width(*args, *kwargs.values())
    if not isinstance(owner, str):
        # An index is looked for by comparing.
        budget.read((args, owner if isinstance(owner, list | tuple) else ()))
    elif name in _REFUSED_METHODS:
        raise TooMuchError(f"it calls {name}, which templates may not")
    elif name == "format":
        budget.formatting(owner, "{", (args, kwargs))
    elif name == "join":
        args = tuple(map(list, args))
        for parts in args:
            budget.joining(parts, owner)
    elif name == "replace":
        old, new = (*map(str, args), *map(str, kwargs.values()), "", "")[:2]
        budget.replacing(owner, old, new)
    else:
        budget.read((args, kwargs))
        part = max((arg for arg in args if isinstance(arg, str)), key=len, default="")
        if "split" in name:
            budget.splitting(owner, part)
        else:
            budget.searching(owner, part)
    return args


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that spends."""
    passed = hasattr(function, "jinja_pass_arg")

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        head, values = args[:passed], args[passed:]
        if name == "join" and values and not isinstance(values[0], str):
            values = (list(values[0]), *values[1:])
        _spend_on_filter(name, values, kwargs)
        return _spent.get().made(function(*head, *values, **kwargs))

    return counted


def _spend_on_filter(name: str, values: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    budget = _spent.get()

    def argument(index: int, key: str, default: Any = "") -> Any:
        return values[index] if len(values) > index else kwargs.get(key, default)

    if name in _WIDE:
        check_width(*values[1:], *kwargs.values())
    if name in _ONE:
        budget.spend(1)
    elif name in _SHALLOW:
        budget.made(values[0] if values else None)
        budget.spend(sum(len(value) for value in values if isinstance(value, str)))
    else:
        budget.read((values, kwargs))
    if name in _SLOW and values and isinstance(values[0], Sized):
        budget.spend(len(values[0]) // 5 if isinstance(values[0], str) else 4 * len(values[0]))
    if name == "join":
        budget.joining(values[0] if values else (), str(argument(1, "d")))
    elif name == "replace":
        budget.replacing(*(str(argument(i, k)) for i, k in enumerate(("s", "old", "new"))))
    elif name == "indent":
        width = argument(1, "width", 4)
        lines = str(argument(0, "s")).count("\n") + 1
        budget.text(lines * (len(width) if isinstance(width, str) else int(width)))
    elif name == "format":
        budget.formatting(str(argument(0, "value")), "%", (values[1:], kwargs))


def _counted_test(function: Any) -> Callable[..., Any]:
    """A test that spends where it compares."""
    passed = hasattr(function, "jinja_pass_arg")

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1 + passed:
            _spent.get().read(args[passed:])
        elif isinstance(args[-1], str):
            _spent.get().text(len(args[-1]))
        return function(*args, **kwargs)

    return counted


def _read(value: Any) -> Any:
    _spent.get().read(value)
    return value


def _join(values: Sequence[Any]) -> str:
    """What ``~`` makes."""
    _spent.get().joining(values)
    return "".join(map(str, values))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which no chat model was trained on.
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None and separators is None:
        return encoder.encode(value)
    return "".join(map(_spent.get().made, encoder.iterencode(value)))


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _Namespace(Namespace):
    """A namespace whose text is short, though it may hold others, and itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Generation(Extension):
    """``{% generation %}`` marks what training counts; in a prompt it is a scope, no more."""

    tags = {"generation"}  # noqa: RUF012 (as the base class has it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Counting(NodeTransformer):
    """Puts filters that spend around what the environment does not see being computed."""

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), _MADE)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx == "store" else _filtered(node, _MADE)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), _MADE)

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _filtered(node.key, _READ)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _MADE) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _JOINED)

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, _READ)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, _READ)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self._body(node)
        node.iter = _filtered(node.iter, _MADE)
        return node

    def _body(self, node: Any) -> nodes.Node:
        units = _cost(node.body)
        self.generic_visit(node)
        turn = nodes.ExprStmt(_filtered(nodes.Const(units, lineno=node.lineno), _TURN))
        node.body.insert(0, turn)
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_Block = _body  # noqa: N815


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _cost(body: Iterable[nodes.Node]) -> int:
    """Units of one turn of a body, without what the environment sees."""
    parts = characters = 0
    for statement in body:
        for node in (statement, *statement.find_all(nodes.Node)):
            parts += 1
            if isinstance(node, nodes.TemplateData):
                characters += len(node.data)
    return 1 + parts // _PARTS + characters // CHARACTERS
