"""Tests of passages of several documents as one text: the prompt's view, and positions in the values' own documents."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from typing import Any

import pytest

from features.documents.extraction.course.corpus import FoundPassage, gather
from features.documents.extraction.course.document import again_requests, record_of
from features.documents.extraction.course.job import ExtractJob, plan
from features.documents.extraction.course.line_results import TOO_LONG_CODE, Answers, LineResult
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.documents.runs import Box, Run, Runs
from features.documents.extraction.passes.excerpts import Window, likely_tokens

FIELDS = {"vendor": {"type": "string"}, "total": {"type": "string"}}
SCHEMA = json.dumps({"type": "object", "properties": FIELDS}).encode()
TWO_PAGES = ("The vendor is Ash Ltd.", "All in all it is 12.50 to be paid.")


def paged() -> Document:
    """A document of two pages, each with a box for its last words."""
    text = "\n".join(TWO_PAGES)
    document = parse(text.encode(), "a.txt", Limits())
    cut = len(TWO_PAGES[0])
    first, second = document.pages[0], document.pages[0]
    runs = [
        Run(start=14, end=cut, page=0, box=Box(x0=1, y0=2, x1=3, y1=4)),
        Run(start=cut + 1, end=len(text), page=1, box=Box(x0=5, y0=6, x1=7, y1=8)),
    ]
    pages = (replace(first, start=0, end=cut), replace(second, start=cut + 1, end=len(text)))
    return replace(document, pages=pages, runs=Runs.of(runs))


def passage(document: Document, name: str, start: int, end: int, *, rank: int = 0) -> FoundPassage:
    shown = f"Papers > {name}\n{document.text[start:end]}"
    return FoundPassage(document_id=f"id-{name}", document=name, start=start, end=end, rank=rank, shown=shown)


def job() -> ExtractJob:
    return plan(SCHEMA, quotes=False, params={}, max_fields=25, apart=True)


def record(found: list[list[FoundPassage]], stored: dict[str, bytes], *answers: dict[str, Any]) -> dict[str, Any]:
    gathered = gather(found, stored)
    first = [LineResult(text=json.dumps(answer)) for answer in answers]
    made = record_of(job(), gathered.showing(), Answers(first=first), name="all", sha256="", usage={})
    return gathered.placed(made)


def places(found: dict[str, Any]) -> dict[str, Any]:
    return {each["path"]: each["spans"] for each in found["evidence"]}


def test_each_field_is_asked_by_itself_and_an_object_as_one() -> None:
    vendor = {"type": "object", "properties": {"name": {"type": "string"}, "iban": {"type": "string"}}}
    schema = {"type": "object", "properties": {"vendor": vendor, "total": {"type": "string"}}}
    asked = plan(json.dumps(schema).encode(), quotes=True, params={}, max_fields=25, apart=True)
    assert [[leaf.path for leaf in group.leaves] for group in asked.groups] == [
        [("vendor", "name"), ("vendor", "iban")],
        [("total",)],
    ]


def test_what_an_answer_left_out_is_asked_in_halves_of_the_same_passages_and_one_that_is_too_long_fails() -> None:
    schema = json.dumps({"type": "object", "properties": {"sum": {"type": "object", "properties": FIELDS}}}).encode()
    asked = replace(
        plan(schema, quotes=False, params={}, max_fields=25, apart=True),
        window=Window(max_tokens=4096, count=likely_tokens),
    )
    first, second = paged(), parse(b"Birch Inc is the other.", "b.txt", Limits())
    found = [[passage(first, "a.txt", 4, 57), passage(second, "b.txt", 0, 9)]]
    gathered = gather(found, {"id-a.txt": first.to_bytes(), "id-b.txt": second.to_bytes()})
    cut = Answers(first=[LineResult(text='{"sum": {"vendor": "Ash Ltd Ltd')])
    requests = again_requests(asked, gathered.showing(), cut)
    assert list(requests) == ["0-0", "0-1"]
    assert all(gathered.excerpts[0].layout.text in one.messages[-1]["content"] for one in requests.values())
    answers = {"0-0": LineResult(text='{"sum": {"total": "12.50"}}'), "0-1": LineResult(text='{"sum": {"vendor": "Ash')}
    made = record_of(asked, gathered.showing(), replace(cut, again=[answers]), name="all", sha256="", usage={})
    assert made["fields"] == {"sum": {"vendor": None, "total": "12.50"}}
    too_long = Answers(first=[LineResult(error={"code": TOO_LONG_CODE, "message": "the prompt is too long"})])
    failed = record_of(asked, gathered.showing(), too_long, name="all", sha256="", usage={})
    assert (failed["status"], failed["error"]["code"]) == ("failed", TOO_LONG_CODE)


def test_values_are_placed_in_the_document_and_on_the_page_that_they_are_of() -> None:
    first, second = paged(), parse(b"Nothing here. Birch Inc is the vendor.", "b.txt", Limits())
    found = [
        [passage(second, "b.txt", 14, 38, rank=0), passage(first, "a.txt", 4, 22, rank=1)],
        [passage(first, "a.txt", 4, 57, rank=0)],
    ]
    stored = {"id-a.txt": first.to_bytes(), "id-b.txt": second.to_bytes()}
    made = record(found, stored, {"vendor": "Ash Ltd"}, {"total": "12.50"})
    assert made["fields"] == {"vendor": "Ash Ltd", "total": "12.50"}
    of_a = {"document_id": "id-a.txt", "document": "a.txt"}
    start = first.text.index("12.50")
    assert places(made) == {
        "vendor": [of_a | {"start": 14, "end": 21, "page": 0, "box": [1.0, 2.0, 3.0, 4.0]}],
        "total": [of_a | {"start": start, "end": start + 5, "page": 1, "box": [5.0, 6.0, 7.0, 8.0]}],
    }
    ranks = {each["path"]: each["features"]["retrieval_rank"] for each in made["evidence"]}
    assert ranks == {"vendor": 0, "total": 0}, "of a passage that two questions were shown the better one"


def test_of_a_document_that_is_gone_or_another_by_now_the_text_is_all_that_is_known() -> None:
    document = paged()
    found = [[passage(document, "a.txt", 4, 22)], [passage(document, "a.txt", 30, 57)]]
    other = parse(b"something else", "a.txt", Limits())
    for stored in ({}, {"id-a.txt": other.to_bytes()}):
        spans = places(record(found, stored, {"vendor": "Ash Ltd"}, {"total": "12.50"}))
        assert [(each["start"], each["page"], each["box"]) for (each,) in spans.values()] == [
            (14, None, None),
            (document.text.index("12.50"), None, None),
        ]


def test_prompts_show_each_passage_with_its_number_and_overlapping_ones_are_one_text() -> None:
    document = paged()
    found = [[passage(document, "a.txt", 0, 15), passage(document, "a.txt", 11, 22)], []]
    gathered = gather(found, {"id-a.txt": document.to_bytes()})
    showing, asked = gathered.showing(), job()
    assert asked.excerpt(0, showing).layout.text == (
        "[1] a.txt\nPapers > a.txt\nThe vendor is A\n\n[2] a.txt\nPapers > a.txt\nis Ash Ltd."
    )
    assert asked.excerpt(1, showing).layout.text == ""
    assert gathered.document.text == TWO_PAGES[0]


def test_another_value_behind_the_same_words_of_another_document_is_told() -> None:
    texts = {
        name: parse(text, name, Limits()) for name, text in (("a.txt", b"Total: 12.50"), ("b.txt", b"Total: 13.50"))
    }
    found = [[], [passage(each, name, 0, len(each.text)) for name, each in texts.items()]]
    made = record(found, {}, {"vendor": None}, {"total": "12.50"})
    (total,) = [each for each in made["evidence"] if each["path"] == "total"]
    assert [(other["value"], other["spans"][0]["document"]) for other in total["others"]] == [("13.50", "b.txt")]


def test_of_documents_no_more_is_kept_than_their_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    read, boxes = Document.from_bytes, list[weakref.ref[Any]]()

    def noting(stored: bytes) -> Document:
        document = read(stored)
        boxes.append(weakref.ref(document.runs.boxes))
        assert [one() is None for one in boxes[:-2]] == [True] * len(boxes[:-2]), (
            "all but this and that before are gone"
        )
        return document

    monkeypatch.setattr(Document, "from_bytes", noting)
    document, names = paged(), [f"{number}.txt" for number in range(4)]
    found = [[passage(document, name, 4, 22) for name in names]]
    gathered = gather(found, {f"id-{name}": document.to_bytes() for name in names})
    assert (len(boxes), len(gathered.document.runs)) == (4, 4)


def test_a_value_that_a_file_is_named_by_is_found_in_the_text() -> None:
    document = parse(b"Invoice R-17", "R-17.pdf.txt", Limits())
    found = [[passage(document, "R-17.pdf", 0, len(document.text))], []]
    (vendor, _) = record(found, {}, {"vendor": "R-17"}, {"total": None})["evidence"]
    assert [(span["start"], span["end"]) for span in vendor["spans"]] == [(8, 12)]


def test_a_value_that_only_names_a_file_is_not_found() -> None:
    document = parse(b"Invoice of Ash Ltd", "a.txt", Limits())
    of_file = passage(document, "R-17.pdf", 0, len(document.text))
    found = [[replace(of_file, shown=document.text)], []]
    (vendor, _) = record(found, {}, {"vendor": "R-17"}, {"total": None})["evidence"]
    assert (vendor["value"], vendor["answer"], vendor["spans"]) == (None, "R-17", [])


def test_where_nothing_was_found_there_is_nothing() -> None:
    found = record([[], []], {}, {"vendor": "Ash"}, {"total": None})
    assert found["fields"] == {"vendor": None, "total": None}
    assert found["evidence"][0]["answer"] == "Ash"


def test_a_value_that_stands_in_a_heading_alone_is_no_invention() -> None:
    document = paged()
    shown = [[passage(document, "a.txt", 0, 22)], []]
    (vendor, _) = record(shown, {}, {"vendor": "Papers"}, {"total": None})["evidence"]
    assert (vendor["value"], vendor["spans"]) == ("Papers", [])
