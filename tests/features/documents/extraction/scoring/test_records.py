"""Tests of a document through all passes, with answers as from a model, to its record."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest

from features.documents.extraction.documents.document import Document, Page
from features.documents.extraction.documents.runs import Runs
from features.documents.extraction.fields.groups import groups
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.answers import read_answer
from features.documents.extraction.passes.asking_again import doubts, settle
from features.documents.extraction.passes.findings import Finding, ground_readings, relocate
from features.documents.extraction.passes.hunter import hunter_request
from features.documents.extraction.passes.logprobs import with_logprobs
from features.documents.extraction.passes.merging import merge, record
from features.documents.extraction.passes.second_reading import read_second, second_reading_request, with_agreements
from features.documents.extraction.passes.validators import violations
from features.documents.extraction.report.page import report
from features.documents.extraction.scoring.records import UNANSWERED, done_record, failed_record
from tests.features.documents.extraction.fields.builders import INVOICE

TEXT = """Miller Ltd                     Invoice R-17
Issued 05.03.2024
Nut        2     60.00
Bolt       1     40.00
Net 100.00
Tax 19.00
Total EUR 119.00
"""
SHOWN = "<page>\n" + TEXT
"""The prompt's text: the document's, one line further down."""
SHIFT = len(SHOWN) - len(TEXT)

SCHEMA = FieldSchema.parse(INVOICE)
(GROUP,) = groups(SCHEMA)
DOCUMENT = Document(
    text=TEXT,
    pages=(Page(start=0, end=len(TEXT)),),
    runs=Runs.of([]),
    cells=(),
    headings=(),
    format="txt",
    parser="test 1",
)


def said(value: Any, quote: str) -> dict[str, Any]:
    return {"value": value, "quote": quote}


FIRST = json.dumps(
    {
        "number": said("R-17", "Invoice R-17"),
        "vendor": {"name": said("Miller Ltd", "Miller Ltd"), "iban": None},
        "issued": said("2024-03-05", "Issued 05.03.2024"),
        "due": None,
        "currency": said("EUR", "EUR"),
        "lines": [
            {"article": said("Nut", "Nut"), "quantity": said(2, "2"), "amount": said(60.0, "60.00")},
            {"article": said("Bolt", "Bolt"), "quantity": said(1, "1"), "amount": said(40.0, "40.00")},
        ],
        "tags": [],
        "net": said(101.0, "Net 101.00"),
        "tax": said(19.0, "Tax 19.00"),
        "total": said(119.0, "Total EUR 119.00"),
        "paid": None,
    }
)
LISTED = json.dumps(
    {
        "values": [
            {"kind": "text", "value": "Miller Ltd", "quote": "Miller Ltd"},
            {"kind": "money", "value": "119.00", "quote": "Total EUR 119.00"},
        ]
    }
)
AGAIN = json.dumps({"net": said(100.0, "Net 100.00"), "tax": said(19.0, "Tax 19.00"), "total": None, "lines": []})


def logprobs_of(answer: str) -> list[dict[str, Any]]:
    return [{"token": sign, "logprob": -0.01, "bytes": list(sign.encode()), "top_logprobs": []} for sign in answer]


def findings_of(answer: str) -> tuple[list[Finding], dict[Any, str]]:
    read = read_answer(answer, GROUP)
    findings = ground_readings(read.readings, GROUP, SHOWN)
    findings = with_logprobs(findings, GROUP, answer, logprobs_of(answer))
    findings = with_agreements(findings, read_second(LISTED, SHOWN), GROUP)
    wrong = violations(SCHEMA, record(SCHEMA, merge(SCHEMA, [findings])))
    return findings, doubts(GROUP, read, findings, wrong)


def through_all_passes() -> dict[str, Any]:
    assert TEXT in hunter_request(SHOWN, GROUP).messages[-1]["content"]
    assert TEXT in second_reading_request(SHOWN, GROUP).messages[-1]["content"]
    first, asked = findings_of(FIRST)
    again = ground_readings(
        read_answer(AGAIN, GROUP.restrict([SCHEMA.leaf(path) for path in asked])).readings, GROUP, SHOWN
    )
    settled = [settle(GROUP, first, again, asked), again]
    merged = merge(SCHEMA, [relocate(part, lambda start, end: (start - SHIFT, end - SHIFT)) for part in settled])
    return done_record(SCHEMA, merged, DOCUMENT, name="a.txt", sha256="00", usage={"input_tokens": 1})


def test_what_a_check_speaks_against_is_asked_again_and_put_right() -> None:
    _, asked = findings_of(FIRST)
    assert {("net",), ("tax",), ("total",), ("lines", "*", "amount")} <= set(asked)
    assert not {("number",), ("vendor", "name"), ("issued",)} & set(asked)
    fields = through_all_passes()["fields"]
    assert (fields["net"], fields["total"]) == (100.0, 119.0)
    assert fields["lines"][1] == {"article": "Bolt", "quantity": 1, "amount": 40.0}


def test_the_record_fits_the_schema_and_its_spans_hold_the_values() -> None:
    made = through_all_passes()
    jsonschema_rs.validator_for(SCHEMA.output_schema()).validate(made["fields"])
    places = {
        each["path"]: TEXT[each["spans"][0]["start"] : each["spans"][0]["end"]]
        for each in made["evidence"]
        if each["spans"]
    }
    assert places["total"] == "Total EUR 119.00"
    assert places["net"] == "Net 100.00"
    assert places["lines[1].amount"] == "40.00"
    assert (made["document"], made["status"], made["error"]) == ("a.txt", "done", None)


def test_what_two_readings_agree_on_scores_higher_than_what_one_says() -> None:
    scores = {each["path"]: each["score"] for each in through_all_passes()["evidence"]}
    assert scores["total"] > scores["tax"] > 0.5


def test_records_are_json_and_make_a_page() -> None:
    error = {"code": "encrypted", "message": "it has a password"}
    records = [through_all_passes(), failed_record(error, name="b.pdf", sha256="11", usage={})]
    assert json.loads(json.dumps(records)) == records
    assert records[1]["error"] == {"code": "encrypted", "message": "it has a password", "page": None}
    page = report(records, {"a.txt": TEXT})
    assert "it has a password" in page
    assert "Total EUR 119.00</mark>" in page


def test_what_no_answer_came_to_is_null_and_always_reviewed() -> None:
    findings = [each for each in findings_of(FIRST)[0] if each.path != ("net",)]
    made = done_record(SCHEMA, merge(SCHEMA, [findings]), DOCUMENT, name="a.txt", sha256="00", usage={})
    told = next(each for each in made["evidence"] if each["path"] == "net")
    assert made["fields"]["net"] is None
    assert told["review"]
    assert told["reasons"] == [UNANSWERED]


@pytest.mark.parametrize(
    ("value", "quote", "is_reviewed"),
    [
        ("Miller Ltd", "Miller Ltd", False),
        ("Miller Ltd", "Sold by: Miller Ltd", True),
        ("Tiller Hotels", "Miller Ltd", True),
    ],
    ids=["true", "invented quote", "another name in a true quote"],
)
def test_a_made_up_quote_leaves_a_trace(value: str, quote: str, is_reviewed: bool) -> None:
    schema = FieldSchema.parse(b'{"type": "object", "properties": {"vendor": {"type": "string"}}}')
    (group,) = groups(schema)
    readings = read_answer(json.dumps({"vendor": said(value, quote)}), group, quotes=True).readings
    merged = merge(schema, [ground_readings(readings, group, TEXT)])
    (evidence,) = done_record(schema, merged, DOCUMENT, name="a.txt", sha256="", usage={})["evidence"]
    assert (evidence["review"], bool(evidence["reasons"])) == (is_reviewed, is_reviewed)


@pytest.mark.parametrize(
    ("answer", "due", "num_reasons", "is_reviewed"),
    [
        ("2024-04-03", "25/04/2024", 0, False),
        ("2024-03-04", "25/04/2024", 1, True),
        ("2024-04-03", "04/04/2024", 1, True),
        ("2024-04-03", "", 1, True),
    ],
)
def test_a_date_with_two_readings_says_so_unless_other_dates_decide(
    answer: str, due: str, num_reasons: int, *, is_reviewed: bool
) -> None:
    schema = FieldSchema.parse(b'{"type": "object", "properties": {"issued": {"type": "string", "format": "date"}}}')
    (group,) = groups(schema)
    text = f"Issued 03/04/2024\nDue {due}\n"
    document = replace(DOCUMENT, text=text, pages=(Page(start=0, end=len(text)),))
    readings = read_answer(json.dumps({"issued": said(answer, "Issued 03/04/2024")}), group, quotes=True).readings
    merged = merge(schema, [ground_readings(readings, group, text)])
    (evidence,) = done_record(schema, merged, document, name="a.txt", sha256="", usage={})["evidence"]
    assert (len(evidence["reasons"]), evidence["review"]) == (num_reasons, is_reviewed)
