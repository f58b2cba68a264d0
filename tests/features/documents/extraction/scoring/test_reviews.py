"""Tests of choosing what to review, of applying verdicts, and of gold in which only reviewed values count."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.evaluation.evaluate import evaluate, judged
from features.documents.extraction.evaluation.gold import read_gold
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.reviews import Reviewed, as_reviewed, gold_of, is_right, reviewable
from features.documents.extraction.scoring.verdicts import Reason, Verdict

SCHEMA = FieldSchema.parse(
    {
        "type": "object",
        "properties": {
            "vendor": {"type": "string", "x-tokenmill": {"weight": 4}},
            "paid": {"type": "boolean"},
            "currency": {"enum": ["EUR", "USD"], "type": "string"},
            "lines": {
                "type": "array",
                "items": {"type": "object", "properties": {"count": {"type": "integer"}, "price": {"type": "number"}}},
            },
        },
    }
)
FIELDS: dict[str, Any] = {
    "vendor": "Ash",
    "paid": None,
    "currency": "EUR",
    "lines": [{"count": 1, "price": 2.5}, {"count": 7, "price": 4.0}],
}


def evidence(path: str, value: Any, *, score: float, review: bool) -> dict[str, Any]:
    features = {"is_null": value is None, "likeness": 1.0, "vote_share": 1.0, "num_candidates": 1, "num_rivals": 0}
    return {"path": path, "value": value, "score": score, "review": review, "spans": [], "features": features}


def record(document_id: str = "doc_1") -> dict[str, Any]:
    return {
        "document_id": document_id,
        "document": "a.pdf",
        "fields": FIELDS,
        "error": None,
        "evidence": [
            evidence("vendor", "Ash", score=0.8, review=True),
            evidence("paid", None, score=0.9, review=False),
            evidence("currency", "EUR", score=0.9, review=False),
            evidence("lines[1].count", 7, score=0.5, review=True),
        ],
    }


def reviewed(*place: str | int, verdict: Verdict = Verdict.CORRECT, value: Any = None) -> Reviewed:
    return Reviewed(place=place, verdict=verdict, value=value, by="key_1", at=5)


def test_what_is_doubtful_is_looked_at_by_unsureness_and_weight() -> None:
    found = {each.path: each for each in reviewable(SCHEMA, record(), seed="e") if each.reason is Reason.DOUBT}
    assert found["vendor"].urgency == pytest.approx(0.8)
    assert found["lines[1].count"].urgency == pytest.approx(0.5)
    assert found["lines[1].count"].place == ("lines", 1, "count")


def test_a_twentieth_of_the_rest_is_drawn_and_always_the_same() -> None:
    drawn = [
        (number, each.path)
        for number in range(4000)
        for each in reviewable(SCHEMA, record(f"doc_{number}"), seed="extraction_1")
        if each.reason is Reason.SAMPLE
    ]
    assert 0.04 < len(drawn) / 8000 < 0.06
    assert {path for _number, path in drawn} == {"paid", "currency"}
    number, path = drawn[0]
    again = reviewable(SCHEMA, record(f"doc_{number}"), seed="extraction_1")
    assert path in {each.path for each in again if each.reason is Reason.SAMPLE}
    other = [
        (number, each.path)
        for number in range(4000)
        for each in reviewable(SCHEMA, record(f"doc_{number}"), seed="extraction_2")
        if each.reason is Reason.SAMPLE
    ]
    assert other != drawn


def test_a_correction_that_only_writes_it_otherwise_says_that_it_was_right() -> None:
    leaf = SCHEMA.leaf(("vendor",))
    assert is_right(leaf, "ASH", Verdict.CORRECT, "Ash")
    assert not is_right(leaf, "Ash", Verdict.CORRECT, "Birch")
    assert not is_right(leaf, "Ash", Verdict.REJECT, None)


def test_a_reviewed_record_has_what_is_right_and_keeps_what_was_extracted() -> None:
    before = record()
    found = as_reviewed(before, [reviewed("lines", 1, "count", value=8), reviewed("vendor", verdict=Verdict.REJECT)])
    assert (found["fields"]["vendor"], found["fields"]["lines"][1]) == (None, {"count": 8, "price": 4.0})
    assert found["evidence"][0]["value"] == "Ash"
    assert found["evidence"][0]["reviewed"] == {"verdict": "reject", "value": None, "by": "key_1", "at": 5}
    assert "reviewed" not in found["evidence"][1]
    assert before == record()


def read(line: Mapping[str, Any]) -> Any:
    return read_gold([json.dumps(line)], SCHEMA)


def test_in_gold_of_reviews_only_what_was_looked_at_counts() -> None:
    line = gold_of(record(), [reviewed("lines", 1, "count", value=8), reviewed("currency", value="EUR")])
    assert line["known"] == ["lines[1].count", "currency"]
    gold = read(line)
    known = judged(SCHEMA, [record()], gold)
    assert sorted(each.is_right for each in known) == [False, True]
    rates = evaluate(SCHEMA, [record()], gold).overall.rates
    assert (rates.right, rates.wrong) == (1, 1)


@pytest.mark.parametrize("known", ["vendor", ["nothing"], [1]])
def test_known_names_values_of_the_line(known: Any) -> None:
    with pytest.raises(ExtractionError, match='line 1: "known"'):
        read({"document": "a.pdf", "fields": FIELDS, "known": known})


def test_a_list_without_an_answer_is_looked_at_and_in_gold_it_has_no_items() -> None:
    told = [evidence("lines", [], score=0.3, review=True)]
    unended = {**record(), "fields": {**FIELDS, "lines": []}, "evidence": told}
    (found,) = reviewable(SCHEMA, unended, seed="e")
    assert (found.place, round(found.urgency, 3)) == (("lines",), 0.7)
    line = gold_of(unended, [reviewed("lines", verdict=Verdict.ACCEPT, value=[])])
    assert (line["known"], line["fields"]["lines"]) == (["lines"], [])
    assert read(line)["doc_1"].known == {"lines"}


def test_of_a_list_that_is_known_every_item_counts() -> None:
    gold = read({"document": "a.pdf", "document_id": "doc_1", "fields": FIELDS, "known": ["lines"]})
    rates = evaluate(SCHEMA, [record()], gold).overall.rates
    assert (rates.right, rates.wrong, rates.missed) == (4, 0, 0)


@pytest.mark.parametrize(("known", "wrong"), [(["lines"], 2), (["lines[0].count"], 0), (["vendor"], 0)])
def test_of_a_list_that_is_known_an_item_that_gold_lacks_counts_as_wrong(known: list[str], wrong: int) -> None:
    gold = read({"document": "a.pdf", "document_id": "doc_1", "fields": FIELDS, "known": known})
    invented = {**record(), "fields": {**FIELDS, "lines": [*FIELDS["lines"], {"count": 99, "price": 98.5}]}}
    assert evaluate(SCHEMA, [invented], gold).overall.rates.wrong == wrong


def test_of_a_list_that_is_known_to_be_empty_every_item_is_wrong() -> None:
    gold = read({"document": "a.pdf", "document_id": "doc_1", "fields": {**FIELDS, "lines": []}, "known": ["lines"]})
    rates = evaluate(SCHEMA, [record()], gold).overall.rates
    assert (rates.right, rates.wrong, rates.missed) == (0, 4, 0)
