"""Tests of splitting a schema into questions."""

from __future__ import annotations

import pytest

from engine.grammars.grammar import check_grammar
from engine.structured import StructuredOutput
from features.documents.extraction.errors import SchemaError
from features.documents.extraction.fields.groups import TOKEN_SHARE, answer_tokens, groups
from features.documents.extraction.fields.schema import FieldSchema
from tests.features.documents.extraction.fields.builders import INVOICE, wide_schema


def test_a_small_schema_is_one_group() -> None:
    schema = FieldSchema.parse(INVOICE)
    assert [group.leaves for group in groups(schema)] == [schema.leaves]


def test_a_schema_of_369_leaves_splits_into_groups_that_each_compile() -> None:
    schema = FieldSchema.parse(wide_schema(369))
    split = groups(schema)
    assert all(len(group.leaves) <= 25 for group in split)
    assert {leaf.path for group in split for leaf in group.leaves} == {leaf.path for leaf in schema.leaves}
    for group in split:
        check_grammar(StructuredOutput(json=group.quoted_schema()))
        check_grammar(StructuredOutput(json=group.plain_schema()))


def test_the_parts_of_an_item_each_have_its_key_and_other_leaves_come_once() -> None:
    schema = FieldSchema.parse(wide_schema(90))
    key = next(leaf for leaf in schema.leaves if leaf.key)
    split = groups(schema, max_leaves=10)
    with_items = [group for group in split if any(leaf.path[0] == "rows" for leaf in group.leaves)]
    assert len(with_items) > 1
    assert all(key in group.leaves for group in with_items)
    others = [leaf.path for group in split for leaf in group.leaves if not leaf.key]
    assert len(others) == len(set(others)) == 89


def test_an_object_that_fits_is_not_torn() -> None:
    schema = FieldSchema.parse(wide_schema(90))
    for section in {leaf.path[0] for leaf in schema.leaves} - {"rows"}:
        holders = [group for group in groups(schema, max_leaves=20) if any(x.path[0] == section for x in group.leaves)]
        assert len(holders) == 1


def test_no_answer_is_expected_to_take_more_than_its_share_of_the_tokens() -> None:
    schema = FieldSchema.parse(wide_schema(90))
    for group in groups(schema, max_tokens=1000):
        expected = sum(answer_tokens(leaf, schema.containers, quotes=True) for leaf in group.leaves)
        assert expected <= TOKEN_SHARE * 1000
    assert len(groups(schema, max_tokens=1000)) > len(groups(schema, max_tokens=1000, quotes=False)) > 1


def test_items_too_wide_without_a_key_are_refused_with_the_way_out() -> None:
    with pytest.raises(SchemaError, match=r"no key to join its parts by.*\"key\": true"):
        groups(FieldSchema.parse(wide_schema(369, key=False)))


def test_some_leaves_of_a_group_bring_the_keys_of_their_items() -> None:
    schema = FieldSchema.parse(INVOICE)
    (group,) = groups(schema)
    some = group.restrict([schema.leaf(("lines", "*", "amount")), schema.leaf(("net",))])
    assert [leaf.path for leaf in some.leaves] == [("lines", "*", "article"), ("lines", "*", "amount"), ("net",)]


def test_a_number_that_runs_on_has_an_end_in_what_is_asked_and_none_in_what_is_put_out() -> None:
    fields = {
        "free": {"type": "integer"},
        "rate": {"type": "number"},
        "some": {"type": "integer", "exclusiveMinimum": 3, "maximum": 9},
        "few": {"type": "integer", "enum": [1, 2]},
    }
    schema = FieldSchema.parse({"type": "object", "properties": fields})
    (group,) = groups(schema)
    asked = {name: one["anyOf"][0] for name, one in group.plain_schema()["properties"].items() if "anyOf" in one}
    most = 10**18 - 1
    assert asked["free"] == {"type": "integer", "minimum": -most, "maximum": most}
    assert asked["rate"] == {"type": "number", "minimum": -most, "maximum": most}
    assert asked["some"] == fields["some"]
    assert group.plain_schema()["properties"]["few"] == {"enum": [1, 2, None]}
    assert schema.output_schema()["properties"]["free"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    check_grammar(StructuredOutput(json=group.quoted_schema()))
