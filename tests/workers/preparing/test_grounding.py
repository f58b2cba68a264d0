"""Tests of grounding a model's answers in their document: the record, and what is to be asked again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from features.documents.collections import collection, documents
from features.documents.extraction.course.corpus import Corpus
from features.documents.extraction.course.job import custom_id
from features.documents.extraction.course.stored_plan import StoredPlan
from jobs.lines.document_bodies import GROUND_ENDPOINT
from tests.all_settings import Settings
from tests.workers.preparing.builders import Library, Preparer, library_of
from workers.preparing import gathering

FIELDS = {"number": {"type": "string"}, "city": {"type": "string"}}
PLAN = StoredPlan(schema=json.dumps({"type": "object", "properties": FIELDS}), model="demo")
TEXT = b"Invoice number 4711, issued in Paris."
USAGE = {"input_tokens": 3, "cached_tokens": 1, "output_tokens": 4}


@pytest.fixture
def document(library: Library, preparer: Preparer) -> dict[str, Any]:
    """The bodies of lines for a read document and its plan."""
    batch_id = library.read({"a.txt": TEXT})
    assert preparer.run_next()
    (body,) = library.bodies(batch_id)
    plan_key = f"{library.tenant.id}/plan"
    library.storage.put(plan_key, PLAN.to_bytes())
    named = {"object_key": body["object_key"], "plan_key": plan_key, "name": "a.txt", "sha256": body["sha256"]}
    return named | {"number": 0}


def said(key: int | str = 0, **values: str) -> dict[str, Any]:
    """Return the result line of a question, by its key."""
    content = json.dumps({name: {"quote": value, "value": value} for name, value in values.items()})
    usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}, "completion_tokens": 4}
    body = {"choices": [{"message": {"content": content}}], "usage": usage}
    return {"custom_id": custom_id(0, key), "response": {"body": body}}


def test_answers_become_a_record_with_the_places_that_they_stand_at(
    library: Library, preparer: Preparer, document: dict[str, Any]
) -> None:
    batch_id = library.submit(
        GROUND_ENDPOINT, [document | {"first": library.answered([said(number="4711", city="Paris")])}]
    )
    assert preparer.run_next()
    (body,) = library.bodies(batch_id)
    record = body["record"]
    assert body["doubts"] == []
    assert record["fields"] == {"number": "4711", "city": "Paris"}
    assert (record["document"], record["status"], record["usage"]) == ("a.txt", "done", USAGE)
    assert [each["grounding"] for each in record["evidence"]] == ["exact", "exact"]


def test_what_was_not_found_is_to_be_asked_again_and_the_second_answer_counts(
    library: Library, preparer: Preparer, document: dict[str, Any]
) -> None:
    first = library.answered([said(number="4711", city="London")])
    batch_id = library.submit(GROUND_ENDPOINT, [document | {"first": first}])
    assert preparer.run_next()
    (doubt,) = library.bodies(batch_id)[0]["doubts"]
    assert doubt["group"] == "0"
    assert TEXT.decode() in doubt["messages"][-1]["content"]
    assert "city" in json.dumps(doubt["response_format"])
    assert "number" not in json.dumps(doubt["response_format"])

    again = [library.answered([said("0", city="Paris")])]
    batch_id = library.submit(GROUND_ENDPOINT, [document | {"first": first, "again": again}])
    assert preparer.run_next()
    (body,) = library.bodies(batch_id)
    assert (body["record"]["fields"], body["doubts"]) == ({"number": "4711", "city": "Paris"}, [])


def test_answers_of_an_index_are_placed_in_the_document_of_the_passage_that_they_stand_in(
    library: Library, preparer: Preparer, document: dict[str, Any]
) -> None:
    plan = replace(PLAN, corpus=Corpus(index_id="index_1", name="all", passage_tokens=256, top_k=5))
    library.storage.put(document["plan_key"], plan.to_bytes())
    start, end = TEXT.index(b"Invoice"), TEXT.index(b", issued")
    passage = {"document": "a.txt", "document_id": "document_gone", "start": start, "end": end, "rank": 0}
    passages = [passage | {"score": 1.0, "num_tokens": 3, "shown": TEXT[start:end].decode()}]
    line = {"custom_id": "document-0-group-0", "response": {"body": {"passages": passages}}}
    found_key = f"{library.tenant.id}/found"
    library.storage.put(found_key, json.dumps(line).encode() + b"\n")
    asked = {name: value for name, value in document.items() if name != "object_key"} | {"found_key": found_key}
    first = library.answered([said(0, number="4711"), said(1, city="Paris")])
    batch_id = library.submit(GROUND_ENDPOINT, [asked | {"first": first}])
    assert preparer.run_next()
    (body,) = library.bodies(batch_id)
    (number, city) = body["record"]["evidence"]
    place = {"start": 15, "end": 19, "page": None, "box": None}
    assert number["spans"] == [{"document_id": "document_gone", "document": "a.txt", **place}]
    assert (city["grounding"], [doubt["group"] for doubt in body["doubts"]]) == ("none", ["1"])


def test_a_line_of_an_earlier_schema_holds_its_answers_itself(
    library: Library, preparer: Preparer, document: dict[str, Any]
) -> None:
    """As one that was under way when its database was taken over."""
    written = {name: value for name, value in document.items() if name != "number"} | {"usage": USAGE}
    error = {"code": "context_length_exceeded", "message": "too long"}
    first = {"text": content_of(said(number="4711", city="London")), "logprobs": []}
    second = {"text": content_of(said(number="4711", city="Rome"))}
    again = {"text": content_of(said(city="Paris"))}
    bodies = [
        written | {"first": [first]},
        written | {"first": [first], "second_readings": {"0": second}, "again": [{"0": again}]},
        written | {"first": [first], "again": [{"0": again}], "covered": {"0": {"error": error}}},
        written | {"first": [{"error": error}]},
    ]
    batch_id = library.submit(GROUND_ENDPOINT, bodies)
    assert preparer.run_next()
    asked, again_asked, covered, failed = library.bodies(batch_id)
    assert (asked["record"]["fields"]["number"], [doubt["group"] for doubt in asked["doubts"]]) == ("4711", ["0"])
    for record in (again_asked["record"], covered["record"]):
        assert record["fields"] == {"number": "4711", "city": "Paris"}
    assert failed["record"]["error"] == error | {"page": None}


def content_of(line: dict[str, Any]) -> str:
    content: str = line["response"]["body"]["choices"][0]["message"]["content"]
    return content


def test_documents_of_the_best_passages_are_taken_until_they_are_enough(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("last", "second", "first")
    with library.sessions.begin() as session:
        made = collection.create_collection(session, library.tenant.id, "papers", metadata=None, settings=Settings())
        sources = documents.file_sources(session, library.tenant.id, {library.add(name, b""): None for name in names})
        rows = documents.add_documents(session, made, sources, settings=Settings())
        for row in rows:
            row.object_key = f"{library.tenant.id}/read/{row.name}"
            library.storage.put(row.object_key, b"12345")
        ids = {row.name: row.id for row in rows}
    monkeypatch.setattr(gathering, "MAX_STORED_BYTES", 8)
    found = {
        custom_id(0, 0): [{"document_id": ids["last"], "rank": 2}, {"document_id": "document_gone", "rank": 0}],
        custom_id(0, 1): [{"document_id": ids["second"], "rank": 1}, {"document_id": ids["first"], "rank": 0}],
    }
    stored = gathering.Gathering(sessions=library.sessions, storage=library.storage).stored(found, library.tenant.id)
    assert list(stored) == [ids["first"], ids["second"]]


def test_a_document_whose_answer_failed_has_a_record_that_says_why(
    library: Library, preparer: Preparer, document: dict[str, Any]
) -> None:
    error = {"code": "context_length_exceeded", "message": "too long"}
    first = library.answered([{"custom_id": custom_id(0, 0), "error": error}])
    batch_id = library.submit(GROUND_ENDPOINT, [document | {"first": first}])
    assert preparer.run_next()
    (body,) = library.bodies(batch_id)
    assert body["record"]["error"] == error | {"page": None}
    assert body["doubts"] == []


def test_what_cannot_be_grounded_is_an_error_of_its_line(
    library: Library, preparer: Preparer, document: dict[str, Any]
) -> None:
    answers = {"first": library.answered([said(number="4711", city="Paris")])}
    others = library_of(library, "stranger").answered([said(number="4711", city="Paris")])
    bodies = [
        document | answers | {"object_key": f"{library.tenant.id}/documents/none.doc"},
        document | answers | {"plan_key": "tenant_other/plan"},
        document | {"first": library.answered([said(1, city="Paris")])},
        document | {"first": others},
        document | {"first": answers["first"] | {"first_line": 1}},
        document | answers,
    ]
    batch_id = library.submit(GROUND_ENDPOINT, bodies)
    assert preparer.run_next()
    assert library.errors(batch_id) == {
        "d0": ("document_gone", None),
        "d1": ("not_found", None),
        "d2": ("unknown_version", None),
        "d3": ("unknown_version", None),
        "d4": ("unknown_version", None),
    }
