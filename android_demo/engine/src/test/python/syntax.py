"""Small templates, of which record_text.py records what they render."""

# ruff: noqa: E501

from __future__ import annotations

# What chat templates are written with: white space, scopes, loops, tests, filters, methods.
SYNTAX = (
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc\n\n",
    "a\n  {%+ if true +%}\n  b\n  {%+ endif %}\nc",
    "a\n  {{- 1 -}}\n  b {{ 2 }}\n{# c #}\n  {#- d -#}\n  e",
    "  {# a #}  b\n  {# c #}\nd\r\ne\rf\n",
    "{% raw %} {{ a }} {% endraw %}\n  {%- raw -%}  {% b %}  {%- endraw %}\nc",
    "{{ '\\n\\t\\x41\\u00e9\\'\\\\ \\q' }}|{{ \"it's\" }}|{{ 'a' 'b' }}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 9 %}{{ x }}{% endfor %}{{ x }}",
    "{% set n = namespace(a=0) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}",
    "{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}"
    "{% endif %}{{ i }}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}"
    "{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}",
    "{% for i in [] %}a{% else %}b{% endfor %}{% for i in [3, 4] if i > 3 %}{{ i }}{{ loop.length }}"
    "{% endfor %}{% for i in none_such %}c{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{{ loop.cycle('x', 'y') }}{% endfor %}",
    "{% for i in [1, [2, [3]]] recursive %}{% if i is iterable %}<{{ loop(i) }}>{% else %}{{ i }}"
    "{{ loop.depth }}{% endif %}{% endfor %}",
    "{% macro f(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{{ f(1) }}{{ f(1, 3, 4) }}{{ f(1, c=5) }}",
    "{% macro f() %}{{ x }}{% endmacro %}{% set x = 7 %}{{ f() }}",
    "{% set f = 3 %}{{ f is defined }}{{ g is defined }}{{ g is not defined }}{{ none is none }}"
    "{{ 'a' is string }}{{ [] is sequence }}{{ {} is mapping }}{{ 1 is number }}{{ true is boolean }}"
    "{{ true is true }}{{ 2 is even }}{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 1 is eq 1 }}"
    "{{ 1 is in [1] }}{{ raise_exception is defined }}{{ strftime_now is callable }}",
    "{{ 'x' if false }}|{{ 'x' if false else 'y' }}|{{ 1 if 2 else 3 if 4 else 5 }}",
    "{{ 0 or 'a' }}{{ 1 and 'b' }}{{ not 1 }}{{ none or false or '' or [] }}{{ 1 and 0 or 2 }}",
    "{{ true + true }} {{ 3 - -2 }} {{ 2 * 'ab' }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7.5 % 2 }} {{ 1 / 4 }}"
    " {{ 2 ** 3 ** 2 }} {{ 1.0 }} {{ 1e20 }} {{ 1.5e-7 }} {{ 100000000000000000.0 }} {{ 0.1 + 0.2 }}",
    "{{ 'a' ~ 1 ~ 1.5 ~ true ~ none ~ [1, 'b'] ~ {'c': (1,)} }}",
    "{{ [1, 'it\\'s', \"say \\\"x\\\"\", 'é\\n', none, true] }}{{ ('a', ) }}{{ {'a': {'b': []}} }}",
    "{{ 'abc'[0] }}{{ 'abc'[-1] }}{{ 'abc'[1:] }}{{ 'abc'[::-1] }}{{ 'a😀c'[1] }}{{ 'a😀c'[:2] }}"
    "{{ [1, 2, 3][-2:] }}{{ [1, 2, 3][::2] }}{{ 'abc'[9] }}{{ [1][5] }}{{ 'a😀c' | length }}",
    "{{ ' a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'a,b,c'.split(',') }}|{{ ' a  b '.split() }}|"
    "{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ 'abc'.startswith('ab') }}|"
    "{{ 'abc'.endswith(('x', 'bc')) }}|{{ 'aXb'.lower() }}{{ 'aXb'.upper() }}{{ 'a bC'.title() }}|"
    "{{ 'aXb'.find('b') }}{{ 'aXb'.count('X') }}|{{ 'a\\nb\\n'.splitlines() }}|{{ '7'.zfill(3) }}|"
    "{{ 'ab'.replace('a', 'c', 1) }}|{{ 'prefix'.removeprefix('pre') }}|{{ '12'.isdigit() }}",
    "{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 2) }}{{ {'a': 1}.keys() | list }}"
    "{{ {'a': 1}.values() | list }}{{ {'a': 1}.items() | list }}{{ {'items': 1}['items'] }}",
    "{{ messages[0].role }}{{ messages[0]['content'] }}{{ messages[-1].get('role') }}{{ messages.0.role }}",
    "{{ ' a ' | trim }}{{ 'a' | upper }}{{ 'aB' | capitalize }}{{ none_such | default('d') }}"
    "{{ '' | default('d', true) }}{{ [1, 2] | join('-') }}{{ [3, 1, 2] | sort }}{{ [1, 2] | reverse | list }}"
    "{{ 'x' | replace('x', 'y') }}{{ '5' | int + 1 }}{{ 2.5 | round }}{{ [1, 1, 2] | unique | list }}"
    "{{ [[1, 2], [3]] | map('length') | list }}{{ [1, 2] | sum }}{{ {'b': 1, 'a': 2} | dictsort }}",
    "{{ messages | map(attribute='role') | list }}{{ messages | selectattr('role', '==', 'user') | list"
    " | length }}{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='content') | first }}",
    "{{ {'a': [1, 2.5, none, true, 'é<>&\"\\n']} | tojson }}|{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}|"
    "{{ [1, {'a': []}] | tojson(indent=2) }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% with c = 3 %}{{ c }}{% endwith %}{{ c }}",
    "{% filter upper %}a{{ 'b' }}{% endfilter %}{% set x %}c{{ 1 }}{% endset %}{{ x }}{{ x | length }}",
    "{% if 1 < 2 and not 3 in [1] %}a{% elif true %}b{% else %}c{% endif %}{{ 'a' not in 'b' }}",
    "{{ {'a': {}} }}{{ {} }}{{ [[], ()] }}{{ {'a': {'b': {}}}.a.b }}",
    "{{ raise_exception('no') }}",
    "{{ none_such.a }}",
    "{{ 'a' + 1 }}",
    "{{ 'a' | none_such }}",
    "{{ [].append(1) }}",
    "{{ ''.__class__ }}{{ messages.__class__.__mro__ }}",
    "{{ none + 'a' }}",
    "{% for i in none %}{% endfor %}",
    "{% if %}{% endif %}",
    "{{ 'a }}",
    "{% for i in [1] %}",
    "{{ 1 +  }}",
    "{{ messages[0].content.nothing }}|{{ messages[9] }}|{{ {}.a }}",
)
