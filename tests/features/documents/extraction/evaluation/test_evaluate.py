"""Tests of comparing records with gold."""

from __future__ import annotations

import codecs
import json
from typing import Any

import jsonschema_rs
import pytest

from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.evaluation.comparing import compare
from features.documents.extraction.evaluation.evaluate import evaluate, judged
from features.documents.extraction.evaluation.gold import GoldDocument, read_gold, read_gold_file
from features.documents.extraction.fields.paths import spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.fields.values import is_same_for
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.scoring.features import Features
from tests.features.documents.extraction.fields.builders import INVOICE

SCHEMA = FieldSchema.parse(INVOICE)
FIELDS: dict[str, Any] = {
    "number": "R-17",
    "vendor": {"name": "Miller Ltd", "iban": None},
    "issued": "2024-03-05",
    "due": None,
    "currency": "EUR",
    "lines": [{"article": "Nut", "quantity": 2, "amount": 60.0}, {"article": "Bolt", "quantity": 1, "amount": 40.0}],
    "tags": ["paid", "late"],
    "net": 100.0,
    "tax": 19.0,
    "total": 119.0,
    "paid": True,
}


def gold(fields: dict[str, Any] = FIELDS, **spans: list[list[int]]) -> dict[str, GoldDocument]:
    return read_gold([json.dumps({"document": "a", "fields": fields, "spans": spans})], SCHEMA)


def record(fields: dict[str, Any], **scores: float) -> dict[str, Any]:
    evidence = [
        {"path": path, "score": score, "spans": [{"start": 0, "end": 4, "page": 0, "box": None}]}
        for path, score in scores.items()
    ]
    return {"document": "a", "error": None, "fields": fields, "evidence": evidence}


def test_what_is_like_gold_is_right_in_whatever_order_its_items_are() -> None:
    other = {**FIELDS, "lines": FIELDS["lines"][::-1], "tags": ["LATE", "paid"], "issued": "2024-03-05"}
    found = evaluate(SCHEMA, [record(other)], gold())
    assert found.overall.rates.f1 == 1.0
    assert (found.overall.null_right, found.overall.anls) == (1.0, 1.0)


def test_an_item_too_many_and_one_that_is_missing_are_each_an_error() -> None:
    lines = [{"article": "Nut", "quantity": 2, "amount": 60.0}, {"article": "Saw", "quantity": 9, "amount": 1.0}]
    found = evaluate(SCHEMA, [record({**FIELDS, "lines": lines})], gold())
    rates = found.fields["lines[].article"].rates
    assert (rates.right, rates.wrong, rates.missed) == (1, 1, 1)


def test_a_wrong_value_is_both_wrong_and_missed_and_a_value_for_null_is_wrong() -> None:
    found = evaluate(SCHEMA, [record({**FIELDS, "total": 118.0, "due": "2024-04-01", "net": None})], gold())
    counts = {name: (each.rates.right, each.rates.wrong, each.rates.missed) for name, each in found.fields.items()}
    assert (counts["total"], counts["due"], counts["net"]) == ((0, 1, 1), (0, 1, 0), (0, 0, 1))
    assert found.fields["due"].null_right == 0.0
    assert found.overall.null_right == 0.5


def test_a_text_that_differs_a_little_is_wrong_but_counts_for_its_likeness() -> None:
    found = evaluate(SCHEMA, [record({**FIELDS, "vendor": {"name": "Muller Ltd", "iban": None}})], gold())
    assert found.fields["vendor.name"].rates.right == 0
    assert found.fields["vendor.name"].anls == pytest.approx(0.9)


def test_spans_of_right_values_are_compared_with_those_of_gold() -> None:
    found = evaluate(SCHEMA, [record(FIELDS, number=0.9)], gold(number=[[0, 8]]))
    assert found.fields["number"].span_overlap == 0.5
    assert found.fields["number"].grounded == 1.0
    assert found.fields["total"].span_overlap is None


def test_scores_are_measured_against_what_is_right() -> None:
    found = evaluate(SCHEMA, [record({**FIELDS, "total": 118.0}, number=0.9, total=0.2)], gold())
    assert (found.overall.auroc, found.overall.automated) == (1.0, 0.5)
    assert found.overall.brier == pytest.approx((0.01 + 0.04) / 2)
    assert [point.threshold for point in found.risk] == [0.9, 0.2]


def test_a_document_without_a_record_and_a_failed_one_count_as_missed() -> None:
    failed: dict[str, Any] = {"document": "a", "error": {"code": "encrypted"}, "fields": None, "evidence": []}
    for records in ([], [failed]):
        found = evaluate(SCHEMA, records, gold(), is_valid=lambda _: True)
        assert (found.overall.rates.right, found.overall.rates.recall, found.valid) == (0, 0.0, None)
    assert evaluate(SCHEMA, [failed], gold()).num_failed == 1
    assert evaluate(SCHEMA, [], gold()).without_record == 1
    assert evaluate(SCHEMA, [{**record(FIELDS), "document": "b"}], gold()).without_gold == 1


def test_the_share_of_valid_records_is_measured_by_the_schema() -> None:
    is_valid = jsonschema_rs.validator_for(SCHEMA.output_schema()).is_valid
    assert evaluate(SCHEMA, [record(FIELDS)], gold(), is_valid=is_valid).valid == 1.0
    assert evaluate(SCHEMA, [record({**FIELDS, "total": "119"})], gold(), is_valid=is_valid).valid == 0.0


def test_an_evaluation_is_json() -> None:
    found = evaluate(SCHEMA, [record(FIELDS, number=0.9)], gold())
    told = json.loads(json.dumps(found.to_json()))
    assert (told["overall"]["f1"], told["fields"]["total"]["rates"]["right"]) == (1.0, 1)


def test_every_place_of_either_side_is_compared_once() -> None:
    lines = [*FIELDS["lines"], {"article": "Saw", "quantity": None, "amount": 3.0}]
    pairs = compare(SCHEMA, record({**FIELDS, "lines": lines}), gold()["a"])
    articles = [(pair.given, pair.gold) for pair in pairs if spell(pair.leaf.path) == "lines[].article"]
    assert articles == [("Nut", "Nut"), ("Bolt", "Bolt"), ("Saw", None)]


def test_all_that_is_compared_is_told_before() -> None:
    spent: list[int] = []
    strange = [{"article": str(number), "quantity": number, "amount": 1.0} for number in (7, 8, 9)]
    compare(SCHEMA, record({**FIELDS, "lines": strange}), gold()["a"], spend=spent.append)
    of_lines = sum(leaf.path[0] == "lines" for leaf in SCHEMA.leaves)
    assert max(spent) == 3 * 2 * of_lines
    read: list[int] = []
    line = json.dumps({"document": "a", "fields": {"lines": [{}, {}, {}]}})
    read_gold([line, line.replace('"a"', '"b"')], SCHEMA, spend=read.append)
    flat = sum("[]" not in spell(leaf.path) for leaf in SCHEMA.leaves)
    assert sum(read) == 2 * (flat + 3 * of_lines)


def test_two_records_that_gold_has_one_name_for_are_refused() -> None:
    twins = [{**record(FIELDS, number=0.9), "document_id": name} for name in ("doc_1", "doc_2")]
    with pytest.raises(ExtractionError, match="gold names 'a', the name of two records"):
        evaluate(SCHEMA, twins, gold())
    with pytest.raises(ExtractionError, match="gold names 'a'"):
        judged(SCHEMA, twins, gold())
    by_id = read_gold([json.dumps({"document": "doc_2", "fields": FIELDS})], SCHEMA)
    found = evaluate(SCHEMA, twins, by_id)
    assert (found.num_documents, found.without_gold, found.overall.rates.f1) == (1, 1, 1.0)


def with_ids(*ids: str | None) -> list[dict[str, Any]]:
    """Return lines of gold, or names of records, of documents with the same name."""
    return [{"document": "a", "fields": FIELDS} | ({} if own is None else {"document_id": own}) for own in ids]


@pytest.mark.parametrize(
    ("gold_ids", "record_ids", "documents", "without_gold"),
    [
        (["1", "2"], ["1", "2", "3"], 2, 1),  # the third has the name of two that gold distinguishes
        (["1"], ["2", "1"], 1, 1),  # the first one gives way to the intended one
        (["1"], ["2", "3", "1"], 1, 2),
        (["1"], ["9"], 1, 0),  # the same document in another collection
        (["1"], [None], 1, 0),  # records of a command have no ids
        (["1", "2"], [None], 0, 1),
        (["1", None], ["1", "2"], 2, 0),
    ],
)
def test_ids_tell_documents_of_one_name_apart(
    gold_ids: list[str | None], record_ids: list[str | None], documents: int, without_gold: int
) -> None:
    known = read_gold(map(json.dumps, with_ids(*gold_ids)), SCHEMA)
    found = evaluate(SCHEMA, [record(FIELDS) | one for one in with_ids(*record_ids)], known)
    assert (found.num_documents, found.without_gold) == (documents, without_gold)


@pytest.mark.parametrize("record_ids", [["8", "9"], ["1", "1"]])
def test_two_records_for_one_line_of_gold_are_refused(record_ids: list[str]) -> None:
    known = read_gold(map(json.dumps, with_ids("1")), SCHEMA)
    with pytest.raises(ExtractionError, match="the name of two records"):
        evaluate(SCHEMA, [record(FIELDS) | one for one in with_ids(*record_ids)], known)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 must be"),
        ('{"document": "a"}', "line 1 must be"),
        ('{"document": "a", "fields": {}, "colour": 1}', "'colour'"),
        ('{"document": "a", "fields": {"nett": 1}}', "'nett' is no field"),
        ('{"document": "a", "fields": {"lines": [{"articel": 1}]}}', "'lines[].articel' is no field"),
        ('{"document": "a", "fields": {"total": 1}, "spans": {"total": [3, 4]}}', "offsets into the text"),
        ('{"document": "a", "fields": {"total": 1}, "spans": {"net": [[3, 4]]}}', "has 'net'"),
        ("[" * 100_000, "line 1 is nested too deep"),
        ('{"document": "a", "fields": {"total": ' + "[" * 300 + "]" * 300 + "}}", "line 1 cannot be stored: Recursion"),
        ('{"document": "a\\u0000", "fields": {}}', "line 1: the name 'a\\x00' contains a NUL"),
        ('{"document": "a\\ud800", "fields": {}}', "line 1 cannot be stored: str is not valid UTF-8"),
        ('{"document": "a", "fields": {"number": "\\udc00"}}', "line 1 cannot be stored: str is not valid UTF-8"),
        (
            '{"document": "a", "fields": {"total": 1' + "0" * 30 + "}}",
            "line 1 cannot be stored: Integer exceeds 64-bit",
        ),
        ('{"document": "a", "fields": {"total": NaN}}', "line 1 cannot be stored: Number is not finite"),
        ('{"document": "a", "fields": {"total": 1e999}}', "line 1 cannot be stored: Number is not finite"),
    ],
)
def test_a_wrong_line_of_gold_is_refused_with_its_number(line: str, reason: str) -> None:
    with pytest.raises(ExtractionError) as refused:
        read_gold([line], SCHEMA)
    assert reason in str(refused.value)


def test_a_stored_gold_file_may_begin_with_a_mark_and_is_utf_8() -> None:
    line = json.dumps({"document": "a", "fields": FIELDS}).encode()
    assert list(read_gold_file(codecs.BOM_UTF8 + line, SCHEMA)) == ["a"]
    with pytest.raises(ExtractionError, match=r"it is not UTF-8 \(invalid start byte at byte 0\)"):
        read_gold_file(b"\xff" + line, SCHEMA)


def test_a_document_twice_in_gold_is_refused() -> None:
    line = json.dumps({"document": "a", "fields": FIELDS})
    with pytest.raises(ExtractionError, match="line 3: 'a' occurs twice"):
        read_gold([line, "", line], SCHEMA)
    assert gold(number=[[1, 3]])["a"].spans == {"number": (Span(1, 3),)}


def test_a_value_is_compared_once_whatever_is_measured_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(leaf: Any, *values: Any) -> bool:
        asked.append(spell(leaf.path))
        return is_same_for(leaf, *values)

    monkeypatch.setattr("features.documents.extraction.evaluation.comparing.is_same_for", counted)
    evaluate(SCHEMA, [record({**FIELDS, "lines": []}, number=0.9)], gold({**FIELDS, "lines": []}))
    assert asked.count("number") == 1, "of a text the likeness is another question"


def test_gold_judges_the_features_that_a_record_kept() -> None:
    features = Features(is_null=False, likeness=1.0)
    told = record({**FIELDS, "total": 118.0}, number=0.9, total=0.2, net=0.5)
    for each in told["evidence"][:2]:
        each["features"] = features.to_json()
    found = judged(SCHEMA, [told, {**told, "document": "b"}], gold())
    assert [(each.features, each.is_right, each.document) for each in found] == [
        (features, True, "a"),
        (features, False, "a"),
    ]


def test_the_same_item_several_times_is_counted_as_often() -> None:
    nut = {"article": "Nut", "quantity": 1, "amount": 1.0}
    for given, right in ((2, 2), (3, 2), (1, 1)):
        found = evaluate(SCHEMA, [record({**FIELDS, "lines": [nut] * given})], gold({**FIELDS, "lines": [nut] * 2}))
        rates = found.fields["lines[].article"].rates
        assert (rates.right, rates.wrong, rates.missed) == (right, given - right, 2 - right)
