"""Chat templates come from strangers: one that computes too much ends with an error, soon."""

from __future__ import annotations

import pytest

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.text.chat import render_chat

MESSAGES = [{"role": "user", "content": "Hi\nthere"}, {"role": "assistant", "content": "Hello."}]
MANY = "range(99999)"
GROWING = "{{% set n = namespace(x={0}, y={0}) %}}{{% for i in range(99) %}}{1}{{% endfor %}}{2}"

ENDLESS = {
    "loops": "{% for a in R %}{% for b in R %}{% endfor %}{% endfor %}",
    "loops that print": "{% for a in R %}{% for b in R %}x{% endfor %}{% endfor %}",
    "loops that skip": "{% for a in R %}{% for b in R if false %}x{% endfor %}{% endfor %}",
    "loops over loops": "{% for a in [R] recursive %}{{ loop([R, R]) }}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(99) }}",
    "blocks": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "callers": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}{% for a in R %}"
    "{% call m() %}{% for b in R %}{% endfor %}{% endcall %}{% endfor %}",
    "filters": "{% for a in R %}{{ R | sum }}{% endfor %}",
    "filters of filters": "{{ R | map('string') | map('center', 999) | join }}",
    "tests": "{% for a in R %}{{ R | select('in', R) | list | length }}{% endfor %}",
    "searches": "{% set x = 'a' * 1000000 %}{{ x.rfind('ab' ~ x) }}",
    "comparisons": "{% set x = 'a' * 1000000 %}{% for a in R %}{{ x ~ 'a' == x }}{% endfor %}",
    "a text times": "{{ 'a' * 10000000000 }}",
    "a list times": "{{ 10000000000 * [1] }}",
    "powers": "{{ 10 ** 10000000000 }}",
    "squares": GROWING.format("3", "{% set n.x = n.x * n.x %}", ""),
    "doubled by ~": GROWING.format("'ab'", "{% set n.x = n.x ~ n.x %}", ""),
    "doubled by +": GROWING.format("'ab'", "{% set n.x = n.x + n.x %}", ""),
    "doubled by join": GROWING.format("'ab'", "{% set n.x = [n.x, n.x] | join %}", ""),
    "doubled by a block": GROWING.format(
        "'ab'", "{% set x %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = x %}", ""
    ),
    "nested and printed": GROWING.format("[1]", "{% set n.x = [n.x, n.x] %}", "{{ n.x }}"),
    "nested, as JSON": GROWING.format(
        "[1]", "{% set n.x = {1: n.x, 2: n.x} %}", "{{ n.x|tojson }}"
    ),
    "nested and compared": GROWING.format(
        "[1]", "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}", "{{ n.x == n.y }}"
    ),
    "nested, as a key": GROWING.format("(1,)", "{% set n.x = (n.x, n.x) %}", "{{ {n.x: 1} }}"),
    "nested, looked up": GROWING.format("(1,)", "{% set n.x = (n.x, n.x) %}", "{{ {}[n.x] }}"),
    "nested, got": GROWING.format("(1,)", "{% set n.x = (n.x, n.x) %}", "{{ {}.get(n.x) }}"),
    "replaced": "{% set x = 'a' * 100000 %}{{ x.replace('a', x) }}",
    "replaced by the filter": "{% set x = 'a' * 100000 %}{{ x | replace('a', x) }}",
    "joined": "{{ ('a' * 100000).join(R | map('string')) }}",
    "joined by the filter": "{{ R | join('a' * 100000) }}",
    "joined by a name": "{{ R | join(d='a' * 100000) }}",
    "indented": "{{ ('\n' * 100000) | indent('a' * 100000) }}",
    "copies": "".join(f"{{% set a{i} = 'a' * 4000000 %}}" for i in range(100)),
    "slices": "{% set x = 'a' * 4000000 %}"
    + "".join(f"{{% set a{i} = x[1:] %}}" for i in range(100)),
    "splits": "{{ ('a ' * 4000000).split(' ') }}",
    "a wide filter": "{{ 'a' | center(10000000000) }}",
    "a wide method": "{{ 'a'.zfill(10000000000) }}",
    "wide JSON": "{{ [[1]] | tojson(indent=10000000000) }}",
    "wide slices": "{{ R | batch(10000000000, 'a') | list }}",
    "digits": "{{ 1.5 | round(10000000000, 'ceil') }}",
    "a wide format": "{{ '%10000000000d' | format(1) }}",
    "a wide %": "{{ '%10000000000d' % 1 }}",
    "a wide *": "{{ '%*d' % (10000000000, 1) }}",
    "a wide field": "{{ '{:>10000000000}'.format(1) }}",
    "a field of fields": "{{ '{:{}}'.format(1, 10000000000) }}",
    "many fields": "{{ ('{0}' * 100000).format('a' * 100000) }}",
    "tabs": "{{ ('\t' * 1000).expandtabs(1000000000) }}",
    "translations": "{{ ('a' * 1000).translate({97: 'b' * 1000000}) }}",
    "a long template": "a" * 200_000,
    "deep brackets": "{{ " + "[" * 20_000 + "]" * 20_000 + " }}",
    "deep loops": "{% for a in b %}" * 3000,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_what_computes_without_end_is_ended(template: str) -> None:
    with pytest.raises(OmniDraftError, match=r"cannot render.*raw=True"):
        render_chat(template.replace("R", MANY), MESSAGES)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% set x = namespace(a=[1]) %}{% set x.a = x.a + [2, 3] %}{{ x.a[1:] }}", "[2, 3]"),
        ("{{ 'a' ~ 1 ~ none ~ missing }}", "a1None"),
        ("{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{{ loop.last }}{% endfor %}", "x1True"),
        ("{% for m in messages[::-1] %}{{ m.role[:1] }}{% endfor %}", "au"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user, assistant"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ messages[0].content.split('\n')[-1].replace('h', '{0}').format(7) }}", "t7ere"),
        ("{{ ', '.join(['a', 'b']) }} {{ 'a-b'.partition('-') }}", "a, b ('a', '-', 'b')"),
        ("{{ '%s and %03d' % ('a', 7) }} {{ '%.1f' | format(2.55) }}", "a and 007 2.5"),
        ("{{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ 7 / 2 }} {{ 'ab' * 2 }} {{ [1] * 2 }}",
         "3 3 1024 3.5 abab [1, 1]"),
        ("{{ {'a': [1, 'é']} | tojson }} {{ [1, 2] | tojson(separators=(',', ':')) }}",
         '{"a": [1, "é"]} [1,2]'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ 'a\nb' | indent }}", "a\n    b"),
        ("{{ 123456789 | string }}{{ 123456789 | tojson }}", "123456789123456789"),
        ("{% macro m(a, b=[2]) %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}"
         "{% call m(1) %}x{% endcall %}", "1[2]x"),
        ("{% set x | upper %}a{% endset %}{{ x }}{% filter upper %}b{% endfilter %}", "AB"),
        ("{{ 1 < 2 < 3 }} {{ 'a' in 'ab' }} {{ 'b' not in {'a': 1} }}", "True True True"),
        ("{{ [3, 1] | sort | first }}{{ [3, 1] | max }}{{ range(3) | list }}", "13[0, 1, 2]"),
        ("{% generation %}a{% endgeneration %}", "a"),
    ],
)  # fmt: skip
def test_what_templates_do_they_may(template: str, text: str) -> None:
    assert render_chat(template, MESSAGES) == text


def test_a_long_conversation_may_be_looked_at_often() -> None:
    # Quadratic in the turns, as some templates are.
    template = (
        "{% set n = namespace(text='', last=-1) %}{% for m in messages %}"
        "{% if loop.index0 == messages | length - 1 %}{% set n.last = loop.index0 %}{% endif %}"
        "{% for later in messages[loop.index0 + 1:] if later.role == 'system' %}!{% endfor %}"
        "{% set n.text = n.text + '<' + m['role'] + '>' + m['content'] | trim %}{% endfor %}"
        "{{ n.text }}{{ n.last }}"
    )
    messages = [{"role": "user", "content": f" {'word ' * 200}{i} "} for i in range(120)]
    expected = "".join(f"<user>{'word ' * 200}{i}" for i in range(120)) + "119"
    assert render_chat(template, messages) == expected


def test_a_long_text_may_be_rendered() -> None:
    text = "word " * 2_000_000
    template = (
        "{% for m in messages %}{{ '<' ~ m.content.split('</x>')[-1] | trim ~ '>' }}{% endfor %}"
    )
    assert len(render_chat(template, [{"role": "user", "content": text}])) == len(text) + 1
