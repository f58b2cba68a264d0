"""Tests of templates that are refused before anything runs, with the place and what is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.pipelines.rows.templates.errors import TemplateRefusedError
from features.pipelines.rows.templates.limits import MAX_SOURCE_BYTES
from features.pipelines.rows.templates.rules import first_problem
from features.pipelines.rows.templates.template import check
from features.pipelines.rows.templates.tokens import blocks_of


@pytest.mark.parametrize(
    ("source", "place", "said"),
    [
        ("{{ 'a'*10**8 }}", (1, 7), "Multiply numbers only"),
        ('x\n {{ 10**8 * "a" }}', (2, 11), "Multiply numbers only"),
        ("{{ ('a' ~ b) * 9 }}", (1, 14), "Multiply numbers only"),
        ("{{ 9 * (b ~ c) }}", (1, 6), "Multiply numbers only"),
        ("{{ [1] * n }}", (1, 8), "Multiply numbers only"),
        ("{% if ('a') * 9 %}{% endif %}", (1, 13), "Multiply numbers only"),
        ("{{ x }}\n{{ x|shell }}", (2, 6), "there is no filter 'shell' here. Allowed are: abs, "),
        ("{% filter urlencode %}x{% endfilter %}", (1, 11), "there is no filter 'urlencode'"),
        ("{%- include '/etc/passwd' %}", (1, 5), "{% include %} is not allowed. Allowed are: break, "),
        ("{% do x.pop() %}", (1, 4), "{% do %} is not allowed"),
        ("a\n{{ x y }}", (2, 6), "unexpected identifier, expected end of variable block"),
        ("{% if x %}", (1, 9), "unexpected end of input"),
        ("# system:\nBe brief.\n\n# user:\n\n{{ x }}\n{{ x y }}\n", (7, 6), "unexpected identifier"),
    ],
)
def test_what_is_not_allowed_is_refused_with_its_place(source: str, place: tuple[int, int], said: str) -> None:
    with pytest.raises(TemplateRefusedError) as caught:
        check(source)
    assert (caught.value.line, caught.value.column) == place
    assert caught.value.message.startswith(f"line {place[0]}, column {place[1]}: ")
    assert said in caught.value.message


@pytest.mark.parametrize(
    "source",
    [
        "{{ row['price'] * 2 }} {{ 2 * row['price'] }} {{ f(x, 'a') * 2 }} {{ 2 ** 3 }} {{ (a + b) * c }}",
        "{{ 2 * 'abc'|length }} {{ x[0] * (y['a'] + 1) }}",
        "{# {{ 'a' * 9 }} {% include 'x' %} #}{% raw %}{{ 'a' * 9 }}{{ x|shell }}{% endraw %}{{ '* a' }} 'a' * 9",
        "{{ {'a': {'b': 1}}['a'] }}{{ \"}}\" }}{%- for i in x|sort -%}{{ loop.index * 2 }}{%- endfor +%}",
        "{% set a %}x{% endset %}{% macro m(x) %}{{ x|upper }}{% endmacro %}{{ m(a) }}",
    ],
)
def test_what_is_allowed_passes(source: str) -> None:
    assert first_problem(source) is None


def test_the_names_that_a_template_takes_are_known() -> None:
    source = "# system:\n{{ who }}\n# user:\n{% for a in row.tags %}{{ a }}{{ range(2) }}{% endfor %}{{ text }}"
    assert check(source).names == {"who", "row", "text"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "the template is empty"),
        (" \n", "the template is empty"),
        ("x" * (MAX_SOURCE_BYTES + 1), f"{MAX_SOURCE_BYTES:,} are allowed"),
        ("{{ " + "-" * 100_000 + "1 }}", "is nested too deeply"),  # it ends the process that compiles it
        ("{{ " + "(" * 1000 + "1" + ")" * 1000 + " }}", "recursion limits"),
        ("a\n# user:\nb", "line 1: there is text before `# user:`"),
        ("# user:\na\n# system:\nb\n# user:\nc", "line 4: `# system:` comes first"),
        ("# system:\n\n# user:\nb", "there is nothing under `# system:`"),
        ("# user:\na\n# assistant:\nb", "line 4: the last message is `# assistant:`"),
    ],
)
def test_what_has_no_one_place_is_refused_in_a_sentence(source: str, said: str) -> None:
    with pytest.raises(TemplateRefusedError) as caught:
        check(source)
    assert said in caught.value.message


def test_a_file_without_marks_is_one_message_and_marks_make_more() -> None:
    assert [(part.role, part.source) for part in check("Rate: {{ x }}\n").parts] == [("user", "Rate: {{ x }}")]
    parts = check("# system:\nS\n\n# user:\nA # user: B\n# assistant:\nC\n#user:\r\nD\n").parts
    assert [(part.role, part.source) for part in parts] == [
        ("system", "S"),
        ("user", "A # user: B"),
        ("assistant", "C"),
        ("user", "D"),
    ]


@given(st.text(alphabet="{}%#'\"\\|*()[]ab1 \n-", max_size=60))
def test_any_text_at_all_is_split_and_judged(source: str) -> None:
    for block in blocks_of(source):
        for token in block.tokens:
            assert source.startswith(token.text, token.position)
    first_problem(source)
