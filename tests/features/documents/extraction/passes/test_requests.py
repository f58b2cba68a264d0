"""Tests of requests to a model: fields in words, shared prefixes, examples that are not leaked."""

from __future__ import annotations

import itertools
import json

import pytest

from engine.grammars.grammar import check_grammar
from engine.structured import StructuredOutput
from features.documents.extraction.fields.groups import groups
from features.documents.extraction.fields.paths import Path, spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.answers import read_answer
from features.documents.extraction.passes.examples import FROM_AN_EXAMPLE, Example, with_example_reasons
from features.documents.extraction.passes.findings import ground_readings
from features.documents.extraction.passes.hunter import hunter_request
from features.documents.extraction.passes.merging import merge
from features.documents.extraction.passes.prompts import Request, Shape, choose_shape, fields_in_words
from features.documents.extraction.passes.second_reading import second_reading_request
from features.documents.extraction.passes.withholding import withhold
from tests.features.documents.extraction.fields.builders import INVOICE

SCHEMA = FieldSchema.parse(INVOICE)
(GROUP,) = groups(SCHEMA)
DOCUMENT = "Invoice R-17 of Miller Ltd, 5 March 2024. Net 100.00, total 119.00 EUR"
EXAMPLE = Example(
    document_text="Invoice Q-99 of Zebra GmbH, total 42.00",
    fields={"number": "Q-99", "vendor": {"name": "Zebra GmbH"}, "total": 42, "lines": [{"article": "Saw"}], "tags": []},
)


def content(request: Request) -> str:
    return request.messages[-1]["content"]


def shared_beginning(one: Request, other: Request) -> str:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(content(one), content(other), strict=False))
    return "".join(sign for sign, _ in same)


def test_fields_are_told_in_words_and_items_below_their_list() -> None:
    assert fields_in_words(GROUP).splitlines() == [
        "Fields:",
        "- number: text; number of the invoice",
        "- vendor.name: text",
        "- vendor.iban: text",
        "- issued: day as YYYY-MM-DD",
        "- due: day as YYYY-MM-DD",
        "- currency: one of EUR, USD",
        "- lines: list, one entry for each in the document",
        "  - article: text",
        "  - quantity: whole number",
        "  - amount: number",
        "- tags: list of text; words on the stamp",
        "- net: number",
        "- tax: number",
        "- total: number",
        "- paid: true or false",
    ]


@pytest.mark.parametrize("quotes", [True, False])
@pytest.mark.parametrize("shape", list(Shape))
def test_no_json_schema_stands_in_a_prompt(shape: Shape, quotes: bool) -> None:
    request = hunter_request(DOCUMENT, GROUP, quotes=quotes, shape=shape, examples=[EXAMPLE])
    assert not any(
        word in str(request.messages) for word in ("anyOf", "properties", "additionalProperties", "x-tokenmill")
    )
    assert DOCUMENT in content(request)
    assert set(request.response_format) == {"type", "json_schema"}


def test_many_documents_share_the_fields_and_the_examples() -> None:
    one, other = (hunter_request(text, GROUP, examples=[EXAMPLE]) for text in ("first", "second"))
    assert "Zebra GmbH" in shared_beginning(one, other)
    assert "- paid: true or false" in shared_beginning(one, other)


def test_many_groups_of_one_document_share_the_document() -> None:
    one, other = (
        hunter_request(DOCUMENT, group, shape=Shape.DOCUMENT_FIRST) for group in groups(SCHEMA, max_leaves=8)[:2]
    )
    assert DOCUMENT in shared_beginning(one, other)


@pytest.mark.parametrize("shape", list(Shape))
def test_both_passes_of_a_document_share_all_up_to_its_end(shape: Shape) -> None:
    hunter, second = (
        ask(DOCUMENT, GROUP, shape=shape, examples=[EXAMPLE]) for ask in (hunter_request, second_reading_request)
    )
    assert DOCUMENT + "\n</document>" in shared_beginning(hunter, second)


def test_the_mapper_has_no_slots_and_asks_for_the_kinds_of_the_group() -> None:
    (group,) = groups(FieldSchema.parse({"type": "object", "properties": {"a": {"type": "string", "format": "date"}}}))
    request = second_reading_request(DOCUMENT, group)
    schema = request.response_format["json_schema"]["schema"]
    assert schema["properties"]["values"]["items"]["properties"]["kind"] == {"enum": ["date"]}
    check_grammar(StructuredOutput(json=schema))


def test_the_shape_follows_from_how_often_a_document_is_read() -> None:
    assert choose_shape(1) is Shape.FIELDS_FIRST
    assert choose_shape(4) is Shape.DOCUMENT_FIRST


def test_an_example_is_answered_as_the_document_shall_be() -> None:
    told = content(hunter_request(DOCUMENT, GROUP, examples=[EXAMPLE]))
    answer = told[told.index("Answer: ") + len("Answer: ") :].splitlines()[0]
    fields = json.loads(answer)
    assert fields["total"] == {"value": 42, "quote": "42.00"}
    assert (fields["net"], fields["tags"]) == (None, [])
    assert fields["vendor"]["name"]["quote"] == "Zebra GmbH"


def test_doubts_are_told_when_a_leaf_is_asked_again() -> None:
    request = hunter_request(DOCUMENT, GROUP, doubts={("lines", "*", "amount"): "it was cut"})
    assert "lines[].amount: it was cut" in content(request)


def test_no_value_of_an_example_comes_out_unless_it_stands_in_the_document() -> None:
    said = {
        "number": {"value": "Q-99", "quote": "Q-99"},
        "vendor": {"name": {"value": "Zebra GmbH", "quote": "Invoice Q-99 of Zebra GmbH"}, "iban": None},
        "total": {"value": 42, "quote": "total 42.00"},
        "lines": [{"article": {"value": "saw", "quote": "saw"}}],
        "currency": {"value": "EUR", "quote": "EUR"},
    }
    answer = read_answer(json.dumps(said), GROUP)
    findings = with_example_reasons(ground_readings(answer.readings, GROUP, DOCUMENT), [EXAMPLE], GROUP)
    entries = withhold(merge(SCHEMA, [findings]), DOCUMENT)
    values = {spell(each.place): (each.value, each.candidates[0].best.reasons) for each in entries}
    for name in ("number", "vendor.name", "total", "lines[0].article"):
        assert values[name] == (None, (FROM_AN_EXAMPLE,))
    assert values["currency"] == ("EUR", ())


def test_a_value_of_an_example_that_the_document_has_too_stays() -> None:
    answer = read_answer(json.dumps({"total": {"value": 42, "quote": "42.00"}}), GROUP)
    found = ground_readings(answer.readings, GROUP, "the total is 42.00 here, too")
    assert [(each.value, each.reasons) for each in with_example_reasons(found, [EXAMPLE], GROUP)] == [(42, ())]


def test_a_reason_that_many_leaves_share_is_told_once() -> None:
    doubts: dict[Path, str] = {("number",): "it was cut", ("net",): "it is nowhere", ("total",): "it was cut"}
    task = hunter_request("text", GROUP, doubts=doubts).messages[-1]["content"]
    assert "(number, total: it was cut; net: it is nowhere)" in task
