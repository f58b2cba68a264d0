"""Tests of combining a document's answers: what is asked again, and what counts of both answers."""

from __future__ import annotations

import json
from dataclasses import replace

from features.documents.extraction.documents.layout import layout
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.fields.groups import groups
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.asking_again import asked_again
from features.documents.extraction.passes.document_reading import DocumentReading, read_group
from features.documents.extraction.passes.merging import record

SCHEMA = FieldSchema.parse(
    {
        "type": "object",
        "properties": {
            "vendor": {"type": "string"},
            "net": {"type": "number"},
            "tax": {"type": "number"},
            "total": {"type": "number"},
        },
        "x-tokenmill": {"checks": ["net + tax == total"]},
    }
)
GROUP = groups(SCHEMA)[0]
DOCUMENT = parse(b"Ash Ltd\nNet 100.00\nTax 19.00\nTotal 119.00\n", "a.txt", Limits())
SHOWN = layout(DOCUMENT)


def said(**values: object) -> str:
    return json.dumps({name: value and {"value": value, "quote": str(value)} for name, value in values.items()})


def test_what_stands_nowhere_and_what_does_not_add_up_is_asked_again() -> None:
    first = read_group(said(vendor="Oak Inc", net=100.0, tax=19.0, total=100.0), GROUP, SHOWN, quotes=True)
    reading = DocumentReading(schema=SCHEMA, first=(first,))
    (question,) = reading.questions()
    doubts = question.doubts
    assert list(doubts) == [("vendor",), ("net",), ("tax",), ("total",)]
    assert doubts["vendor",] == "the value was not found in the document"
    assert "net + tax == total" in doubts["total",]


def test_a_right_answer_is_not_asked_again() -> None:
    first = read_group(said(vendor="Ash Ltd", net=100.0, tax=19.0, total=119.0), GROUP, SHOWN, quotes=True)
    assert DocumentReading(schema=SCHEMA, first=(first,)).questions() == []


def test_a_cut_answer_keeps_what_it_says_and_is_asked_for_the_rest() -> None:
    whole = said(vendor="Ash Ltd", net=100.0, tax=19.0, total=119.0)
    first = read_group(whole[: whole.index('"tax"') + 8], GROUP, SHOWN, quotes=True)
    reading = DocumentReading(schema=SCHEMA, first=(first,))
    asked = reading.questions()
    assert [list(question.doubts) for question in asked] == [[("total",)], [("tax",)]]
    answers = [
        read_group(text, asked_again(GROUP, each.doubts), SHOWN, quotes=True)
        for each, text in zip(asked, (said(total=119.0), said(tax=19.0)), strict=True)
    ]
    both = replace(reading, rounds=(tuple(zip(asked, answers, strict=True)),))
    assert record(SCHEMA, both.merged()) == {"vendor": "Ash Ltd", "net": 100.0, "tax": 19.0, "total": 119.0}
    assert (both.questions(), both.unanswered()) == ([], {})


def test_spans_of_what_is_merged_are_of_the_documents_text() -> None:
    first = read_group(said(vendor="Ash Ltd", net=100.0, tax=19.0, total=119.0), GROUP, SHOWN, quotes=True)
    merged = DocumentReading(schema=SCHEMA, first=(first,)).merged()
    words = [DOCUMENT.text[span.start : span.end] for one in merged for span in one.candidates[0].spans]
    assert words == ["Ash Ltd", "100.00", "19.00", "119.00"]
