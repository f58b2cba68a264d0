"""Tests of rewriting keywords that llguidance lacks: the same values fit, or fewer, and refused schemas work."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequestError
from engine.grammars import grammar, meaning
from engine.grammars.equivalents import clear_references, with_equivalents
from engine.grammars.grammar import check_grammar
from engine.grammars.json_schema import NARROWED
from engine.grammars.limits import MAX_CHARACTERS
from engine.grammars.meaning import MAX_VISITS
from engine.structured import StructuredOutput

pytest.importorskip("llguidance")

NAMES = ("a", "b", "ab")
VALUES: list[Any] = [None, True, False, 0, 1, 2, 2.5, "", "a", "b", "ab", "é-", [], [1], ["a", 2], {}]
VALUES += [{"a": 1}, {"b": 1}, {"ab": 1}, {"c": 1}, {"a": "a"}, {"a": {"a": 1}}, {"a": "b", "b": None}]
VALUES += [{"b": 2, "ab": "a"}, {"a": 1, "b": 1, "ab": 1}]


def _keyword(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return keywords, each with a possible value."""
    names = st.lists(st.sampled_from(NAMES), unique=True, max_size=2)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    some = st.lists(inner, min_size=1, max_size=3)
    sizes = st.integers(0, 3)
    kinds = st.sampled_from(["null", "boolean", "object", "array", "number", "integer", "string"])
    keywords = {
        "type": kinds | st.lists(kinds, unique=True, min_size=1, max_size=3),
        "enum": st.lists(st.sampled_from(VALUES[:12]), min_size=1, max_size=3),
        "const": st.sampled_from(VALUES[:12]),
        "minimum": sizes,
        "exclusiveMaximum": sizes,
        "maxLength": sizes,
        "minItems": sizes,
        "minProperties": st.integers(0, 2),
        "required": names,
        "properties": named,
        "additionalProperties": inner,
        "propertyNames": st.sampled_from(
            [{"enum": ["a", "b"]}, {"pattern": "^a"}, {"type": "string"}, {"maxLength": 1}]
        ),
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), names, max_size=2),
        "dependentSchemas": named,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "oneOf": some,
        "anyOf": some,
        "allOf": some,
    }
    return st.fixed_dictionaries({}, optional=keywords)


SCHEMAS = st.recursive(
    st.booleans() | st.just({"$ref": "#/$defs/x"}), lambda inner: _keyword(inner) | inner, max_leaves=8
)


@settings(max_examples=150, deadline=None)
@given(schema=_keyword(SCHEMAS), definition=_keyword(st.booleans()))
def test_what_is_written_anew_allows_no_other_values(schema: dict[str, Any], definition: dict[str, Any]) -> None:
    original = {**schema, "$defs": {"x": definition}}
    written = with_equivalents(copy.deepcopy(original))
    if written is None:
        return
    before, after = (jsonschema_rs.validator_for(one) for one in (original, written))
    allowed = [value for value in VALUES if before.is_valid(value)]
    still_allowed = [value for value in VALUES if after.is_valid(value)]
    assert [value for value in still_allowed if value not in allowed] == []
    if NARROWED not in json.dumps(written):
        assert still_allowed == allowed


SHAPE = {
    "required": ["kind"],
    "type": "object",
    "properties": {"kind": {"type": "string"}, "size": {"type": "integer"}},
}

KEPT: dict[str, dict[str, Any]] = {
    "not required": {"type": "object", "properties": {"a": {}}, "not": {"required": ["a", "b"]}},
    "not one of texts": {"type": "string", "not": {"enum": ["", "red", "read", "^-]"]}},
    "not one of values": {"not": {"anyOf": [{"const": 3}, {"type": ["null", "object", "array"]}]}},
    "if a property has a value": {
        **SHAPE,
        "if": {"properties": {"kind": {"const": "box"}}, "required": ["kind"]},
        "then": {"required": ["size"]},
        "else": {"properties": {"size": False}},
    },
    "dependencies": {"type": "object", "dependencies": {"a": ["b"], "b": {"properties": {"c": {"type": "null"}}}}},
    "dependent": {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"b": {"required": ["c"]}}, "type": "object"},
    "names from a list": {
        "type": "object",
        "propertyNames": {"enum": ["a", "b"]},
        "additionalProperties": {"type": "null"},
    },
    "names of a pattern": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}},
    "one property at least": {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1},
    "one of the required": {**SHAPE, "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["a", "c"]}]},
    "one of references": {
        "oneOf": [{"$ref": "#/$defs/text"}, {"$ref": "#/$defs/number"}, {"$ref": "#/$defs/list"}],
        "$defs": {"text": {"type": "string"}, "number": {"minimum": 1, "type": "number"}, "list": {"type": "array"}},
    },
    "one of closed objects": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"a": {"type": "array", "items": {"pattern": "x"}}},
                "additionalProperties": False,
            },
            {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"], "additionalProperties": False},
        ]
    },
    "one of overlapping texts": {"oneOf": [{"enum": ["a", "b"]}, {"type": "string", "enum": ["b", "c"]}]},
}


@pytest.mark.parametrize("name", KEPT)
def test_keywords_that_can_be_said_in_others_are_kept(name: str) -> None:
    schema = KEPT[name]
    check_grammar(StructuredOutput(json=schema))
    written = with_equivalents(copy.deepcopy(schema))
    assert written is not None
    before, after = (jsonschema_rs.validator_for(one) for one in (schema, written))
    more = ["red", "read", "re", "^-]", 3, 3.5, {"kind": "box"}, {"kind": "box", "size": 1}, {"kind": "x", "a": 1}]
    fitting = [value for value in [*VALUES, *more] if after.is_valid(value)]
    assert fitting
    assert all(map(before.is_valid, fitting))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string", "not": {"pattern": "^a"}}, "uses not, which is not supported"),
        ({"not": {"type": "integer"}}, "uses not, which is not supported"),
        ({"not": {"items": {"type": "string"}}, "type": "array"}, "uses not, which is not supported"),
        ({"if": {"properties": {"a": {"format": "date"}}}, "then": {"required": ["b"]}}, "uses if, then, which is not"),
        ({"not": {"$ref": "#"}}, "uses not, which is not supported"),
        ({"not": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}, "uses not, which is not supported"),
        ({"propertyNames": {"minLength": 2}}, "uses propertyNames, which is not supported"),
        ({"not": {"minLength": "2"}}, "uses not, which is not supported"),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"}, "Set one_of_as_any_of to true"),
    ],
)
def test_what_cannot_be_said_in_other_keywords_stays_refused_by_its_name(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        check_grammar(StructuredOutput(json=schema))


def test_drafts_are_told_apart() -> None:
    """Draft 4 has no const: whatever is written for it must do without, and what uses it is not negated."""
    draft_4 = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object"}
    written = with_equivalents({**draft_4, "properties": {"a": {"type": "boolean", "not": {"enum": [True]}}}})
    assert "const" not in json.dumps(written)
    with pytest.raises(InvalidRequestError, match="uses not, which is not supported"):
        check_grammar(StructuredOutput(json={**draft_4, "properties": {"a": {"not": {"const": 1, "type": "integer"}}}}))


def test_no_schema_takes_more_looks_than_allowed() -> None:
    """Many branches that overlap, each to be told from all others: it is refused instead."""
    branches = [{"required": [f"a{index}"], "properties": {f"b{index}": {}}} for index in range(MAX_VISITS // 100)]
    with pytest.raises(InvalidRequestError, match="Set one_of_as_any_of to true"):
        check_grammar(StructuredOutput(json={"type": "object", "oneOf": branches}))
    check_grammar(StructuredOutput(json={"type": "object", "oneOf": branches}, one_of_as_any_of=True))


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "object"}, {"oneOf": [{"maximum": 3}, {"type": ["integer", "null"], "minimum": -1}]}]},
        {
            "oneOf": [{"type": "object"}, {"$ref": "#/$defs/x"}],
            "$defs": {"x": {"oneOf": [{"maximum": 3}, {"type": ["integer", "null"], "minimum": -1}]}},
        },
    ],
    ids=["inner", "reference"],
)
def test_branches_that_were_narrowed_do_not_pass_for_disjoint(schema: dict[str, Any]) -> None:
    """An empty object fits the outer branches both: the inner one, narrowed, would leave it to the first."""
    with pytest.raises(InvalidRequestError, match="Set one_of_as_any_of to true"):
        check_grammar(StructuredOutput(json=schema))


def test_long_lists_are_told_apart_value_by_value_not_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[object] = []
    kind_of = meaning.kind_of

    def counted(value: object) -> str:
        looked_at.append(value)
        return kind_of(value)

    monkeypatch.setattr(meaning, "kind_of", counted)
    lists = [{"enum": list(range(300))}, {"enum": list(range(300, 600))}]
    assert meaning.Meaning({}).are_disjoint(*lists)
    assert len(looked_at) < 6_000
    assert not meaning.Meaning({}).are_disjoint({"const": [1.0, True]}, {"enum": [[1, True]]})
    assert meaning.Meaning({}).are_disjoint({"const": [1, True]}, {"enum": [[1, 1], 1]})


BRANCHING: dict[str, Any] = {"type": "null"}
for _ in range(24):
    BRANCHING = {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": BRANCHING}


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"enum": [f"{index:06x}" for index in range(20_000)]}},
        {"not": {"enum": list(range(100_000))}},
        {
            "type": "object",
            "properties": {f"a{index}": {"type": "string", "not": {"$ref": "#/$defs/x"}} for index in range(400)},
            "$defs": {"x": {"enum": ["abcdefghij" * 20, "b" * 200]}},
        },
        {
            "propertyNames": {"enum": [f"a{index}" for index in range(2_000)]},
            "additionalProperties": {"pattern": "a" * 2_000},
        },
        BRANCHING,
    ],
    ids=["texts", "numbers", "references", "names", "names of names"],
)
def test_what_is_written_anew_stays_as_small_as_a_schema_must_be(schema: dict[str, Any]) -> None:
    sources = list(grammar._sources(StructuredOutput(json=schema)))
    assert max(map(len, sources)) < 2 * MAX_CHARACTERS
    with pytest.raises(InvalidRequestError, match=r"uses (not|propertyNames), which is not supported"):
        check_grammar(StructuredOutput(json=schema))


@pytest.mark.parametrize(
    ("schema", "wrong", "right"),
    [
        ({"type": "number", "not": {"enum": [0, 0.5]}}, ["0", "0.5"], ["0.25", "1", "-1"]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0", "0.0"], ["0.25", "0.5"]),
        ({"type": "number", "allOf": [{"exclusiveMinimum": 1}, {"maximum": 1.5}]}, ["1", "1.0"], ["1.25", "1.5"]),
        ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, ["0", "-0"], ["-0.5", "-0.25"]),
        ({"type": "number", "minimum": -2.5, "exclusiveMaximum": -2}, ["-2", "-2.0"], ["-2.5", "-2.25"]),
        ({"type": "number", "exclusiveMinimum": 1, "minimum": 1.25, "maximum": 1.5}, ["1", "1.125"], ["1.25", "1.5"]),
    ],
)
def test_whole_numbers_stay_out_of_exclusive_bounds(schema: dict[str, Any], wrong: list[str], right: list[str]) -> None:
    """The source is the one that the check takes: the first that llguidance does not refuse."""
    llguidance = pytest.importorskip("llguidance")
    tokens = llguidance.LLTokenizer("byte")

    def fits(text: str) -> bool:
        for source in grammar._sources(StructuredOutput(json=schema)):
            matcher = llguidance.LLMatcher(tokens, source, log_level=0)
            if not matcher.is_error():
                return bool(matcher.consume_tokens(tokens.tokenize_str(text)) and matcher.is_accepting())
        raise AssertionError("no source can be used")

    assert [text for text in [*wrong, *right] if fits(text)] == right


@pytest.mark.parametrize("schema", [{"format": "date"}, {"oneOf": [{}], "anyOf": [{}]}])
def test_all_of_that_is_no_list_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="The JSON schema cannot be used"):
        check_grammar(StructuredOutput(json={**schema, "allOf": 5}, one_of_as_any_of=True))


def _chain(beside: dict[str, Any], **root: Any) -> dict[str, Any]:
    """Return the schema of a chain whose reference to itself has keywords beside it."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/definitions/node", **beside}}}
    return {**root, "definitions": {"node": node}, "$ref": "#/definitions/node"}


DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "is_kept"),
    [
        (_chain({"description": "the following one", "title": "Next"}), True),
        (_chain({"minProperties": 1}, **{"$schema": DRAFT_7}), True),
        (_chain({"minProperties": 1}), False),
    ],
)
def test_a_schema_may_lead_to_itself_beside_what_constrains_nothing(schema: dict[str, Any], is_kept: bool) -> None:
    structured = StructuredOutput(json=schema)
    if is_kept:
        check_grammar(structured)
        cleared = copy.deepcopy(schema)
        assert clear_references(cleared)
        assert all(is_valid(schema, value) == is_valid(cleared, value) for value in CHAINS)
    else:
        with pytest.raises(InvalidRequestError, match="circular"):
            check_grammar(structured)


CHAINS: list[Any] = [{}, {"next": {}}, {"next": {"next": {}}}, {"next": 1}, {"next": {"next": []}}, None]


def test_what_stands_beside_a_reference_holds_where_it_can() -> None:
    """Older drafts ignore it; the form without it is only tried when the others are refused."""
    beside = {"$schema": DRAFT_7, "definitions": {"a": {"type": "object"}}, "not": {"const": 1}}
    schema = {**beside, "properties": {"a": {"$ref": "#/definitions/a", "minProperties": 1}}}
    forms = list(grammar._schemas(json.dumps(schema), one_of_as_any_of=False))
    kept = [json.dumps(form).count("minProperties") for form in forms]
    assert kept == [1, 1, 0]


def is_valid(schema: Any, value: Any) -> bool:
    return jsonschema_rs.validator_for(schema).is_valid(value)


@pytest.mark.parametrize(
    "keyword", [f"{bound}{of}" for bound in ("min", "max") for of in ("Items", "Length", "Properties")]
)
def test_a_count_may_be_written_as_a_decimal(keyword: str) -> None:
    check_grammar(StructuredOutput(json={keyword: 2.0}))
    assert grammar.kept_schema(json.dumps({keyword: 2.0}), one_of_as_any_of=False) == {keyword: 2}
    with pytest.raises(InvalidRequestError, match=keyword):
        check_grammar(StructuredOutput(json={keyword: 2.5}))
