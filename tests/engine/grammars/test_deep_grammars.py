"""Tests of schemas and rules with long chains of references: they get an answer, and never end the process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidRequestError
from engine.grammars.grammar import check_grammar
from engine.grammars.limits import MAX_CHARACTERS, MAX_OPENINGS
from engine.structured import StructuredOutput

pytestmark = pytest.mark.long

pytest.importorskip("llguidance")

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "examples" / "demo_model"

ANSWER_ALL = """
import json, sys
from pathlib import Path
import numpy as np
from engine.grammars.grammar import GrammarTokens, MaskFiller
from engine.grammars.compiler import GrammarCompiler
from engine.structured import StructuredOutput
from jobs.lines.body_checks import BodyError
from workers.structure import Asker, check_structure

tokens = GrammarTokens(Path(sys.argv[1]), vocab_size=1024, eos_token_ids=(2,))
compiler = GrammarCompiler(tokens, timeout_seconds=240.0)
filler = MaskFiller()
for name, fields in json.load(sys.stdin).items():
    structured = StructuredOutput(**fields)
    print(name, end=": ", flush=True)
    try:
        check_structure(structured, Asker(), param="structure")
        print("accepted", end=", ", flush=True)
    except BodyError as error:
        print(error, end=", ", flush=True)
    compilation = compiler.compile(structured)
    print(compilation.error or "compiled", flush=True)
    if compilation.compiled is not None:
        matchers = [compilation.compiled.copy() for _ in range(40)]
        masks = np.zeros((40, 32), dtype=np.int32)
        filler.fill([(matcher, row, []) for row, matcher in enumerate(matchers)], masks)
        matchers[0].forced_tokens()
"""


def schema_chain(length: int, link: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return a schema whose definitions each hold a reference to the next."""
    links = {f"a{index}": link({"$ref": f"#/$defs/a{index + 1}"}) for index in range(length)}
    return {"json": {"$defs": {**links, f"a{length}": {"type": "string"}}, "$ref": "#/$defs/a0"}}


def nested_items(reference: dict[str, Any]) -> dict[str, Any]:
    for _ in range(25):
        reference = {"prefixItems": [reference]}
    return reference


def rule_chain(length: int, link: str, first: str = "r") -> dict[str, Any]:
    """Return a grammar whose rules each name the next in the place of {}."""
    lines = [f"{first}{index}: {link.format(f'{first}{index + 1}')}" for index in range(length)]
    return {"grammar": "\n".join([f"start: {first}0", *lines, f'{first}{length}: "a"'])}


def ebnf_chain(length: int, link: str) -> dict[str, Any]:
    """Return an EBNF grammar whose rules each name the next in the place of {}."""
    lines = [f"a{index} ::= {link.format(f'a{index + 1}')}" for index in range(length)]
    return {"grammar": "\n".join(["root ::= a0", *lines, f'a{length} ::= "a"'])}


DEEP: dict[str, dict[str, Any]] = {
    "objects": schema_chain(6_000, lambda rest: {"type": "object", "properties": {"x": rest}}),
    "arrays": schema_chain(9_000, lambda rest: {"type": "array", "items": rest}),
    "nested arrays": schema_chain(300, nested_items),
    "one of several": schema_chain(4_900, lambda rest: {"anyOf": [rest, {"type": "null"}]}),
    "all of several": schema_chain(4_900, lambda rest: {"allOf": [rest, {"minLength": 1}]}),
    "references": schema_chain(19_000, lambda rest: rest),
    "rules": rule_chain(19_900, "{}"),
    "rules in parentheses": rule_chain(680, "(" * 28 + "{}" + ")" * 28),
    "terminals": rule_chain(19_900, "{}", "R"),
    "negated terminals": rule_chain(6_600, '~("b" {})', "R"),
    "EBNF rules": ebnf_chain(9_900, "{}+"),
    "EBNF parentheses": ebnf_chain(340, "(" * 28 + "{}" + ")*" * 28),
    "EBNF parentheses in one another": {"grammar": "root ::= " + "(" * 9_900 + '"a"' + ")" * 9_900},
}


TOO_LARGE = "The JSON schema cannot be used: schema too large."


def test_a_long_chain_within_the_limits_gets_an_answer() -> None:
    """In another process, which lives to tell; masks are filled, and matchers dropped, on its main thread."""
    done = subprocess.run(
        [sys.executable, "-c", ANSWER_ALL, str(MODEL)],
        cwd=ROOT,
        input=json.dumps(DEEP),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, f"it died: {done.stdout[-500:]}{done.stderr[-2000:]}"
    refused = ("nested arrays", "all of several")
    assert done.stdout.splitlines() == [
        f"{name}: " + (f"{TOO_LARGE}, {TOO_LARGE}" if name in refused else "accepted, compiled") for name in DEEP
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            rule_chain(MAX_OPENINGS, "{}"),
            f"The grammar has {MAX_OPENINGS + 1} opening brackets and lines; {MAX_OPENINGS} are allowed",
        ),
        (schema_chain(MAX_OPENINGS, lambda rest: rest), f"The JSON schema has {MAX_OPENINGS + 3} opening brackets"),
        (
            {"json": {"description": "a" * MAX_CHARACTERS}},
            rf"The JSON schema is {MAX_CHARACTERS + 19} characters long; {MAX_CHARACTERS} are allowed",
        ),
    ],
)
def test_what_might_go_deeper_than_the_stack_is_refused_with_the_limit(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        check_grammar(StructuredOutput(**fields))


def test_many_choices_and_long_regexes_have_no_such_limit() -> None:
    check_grammar(StructuredOutput(choice=[f"({index}" for index in range(MAX_OPENINGS + 1)]))
    check_grammar(StructuredOutput(regex="(a|b)" * (MAX_OPENINGS + 1)))
