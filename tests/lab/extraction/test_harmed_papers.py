"""Tests of what counts as right for documents with damaged values."""

from __future__ import annotations

from typing import Any

import pytest

from examples.field_requests import SCHEMA_PATH
from examples.harms import Harm
from examples.make_papers import Paper, make_papers
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.calibration import Calibration, Part
from features.documents.extraction.scoring.score import NOWHERE
from lab.extraction.harmed_papers import ABSENT, STATED, Answer, answers_of, rescored

SCHEMA = FieldSchema.parse(SCHEMA_PATH.read_bytes())
PAPERS = {paper.name: paper for paper in make_papers(40, seed=3, harm_share=0.3)}


def record(paper: Paper, said: dict[str, tuple[Any, str] | None]) -> dict[str, Any]:
    """Return the record of a reading that located the words in the document's text."""
    text = parse(paper.content, paper.name, Limits()).text
    evidence = []
    for name, found in said.items():
        start = -1 if found is None else text.rfind(found[1])
        spans = [] if found is None or start < 0 else [{"start": start, "end": start + len(found[1])}]
        value = found and found[0]
        told = {"score": 0.9, "review": False, "reasons": [], "features": {"is_null": found is None}}
        evidence.append({"path": name, "value": value, "spans": spans, **told})
    return {"document": paper.name, "error": None, "evidence": evidence}


def answers(changes: dict[str, tuple[Any, str] | None]) -> list[Answer]:
    records = [record(paper, {**paper.gold, **changes}) for paper in PAPERS.values()]
    return answers_of(SCHEMA, PAPERS, records)


def test_gold_is_right_but_for_what_is_contradicted() -> None:
    for each in answers({}):
        assert each.is_right == (each.kind != Harm.CONTRADICTED)
    assert {each.kind for each in answers({})} == {STATED, ABSENT, *(harm.value for harm in Harm)}


def test_a_value_for_what_cannot_be_read_is_wrong() -> None:
    given = [each for each in answers({"vendor": ("Somebody", "Somebody")}) if each.name == "vendor"]
    assert not any(each.is_right for each in given)


@pytest.mark.parametrize("name", ["vendor", "date", "number"])
def test_what_stands_elsewhere_than_it_is_stated_is_not_at_its_place(name: str) -> None:
    right = [each for each in answers({}) if each.name == name and each.kind == STATED]
    assert right
    assert all(each.is_at_place for each in right)
    moved = [record(paper, paper.gold) for paper in PAPERS.values()]
    for one in moved:
        for each in one["evidence"]:
            each["spans"] = [{"start": span["start"] + 40, "end": span["end"] + 40} for span in each["spans"]]
    away = [each for each in answers_of(SCHEMA, PAPERS, moved) if each.name == name and each.kind == STATED]
    assert not any(each.is_at_place for each in away)


def test_a_failed_document_has_no_answers() -> None:
    (paper, *_) = PAPERS.values()
    assert answers_of(SCHEMA, PAPERS, [{"document": paper.name, "error": {"code": "damaged"}, "evidence": []}]) == []


def test_what_stands_nowhere_never_goes_on_unseen() -> None:
    paper = next(iter(PAPERS.values()))
    made = record(paper, {**paper.gold, "vendor": None, "number": None})
    told = {each["path"]: each for each in made["evidence"]}
    told["vendor"]["answer"] = "Zorg"
    told["type"]["reasons"] = [NOWHERE]
    found = answers_of(SCHEMA, PAPERS, [made])
    assert {each.name for each in found if each.is_nowhere} == {"vendor", "type"}
    lets_all_go = Calibration(values=Part(num_gold=0, threshold=0.0), nulls=Part(num_gold=0, threshold=0.0))
    unseen = {each.name for each, (_, is_unseen) in zip(found, rescored(found, lets_all_go), strict=True) if is_unseen}
    assert unseen == {leaf.name for leaf in SCHEMA.leaves} - {"vendor", "type"}
