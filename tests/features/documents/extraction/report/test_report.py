"""Tests of an extraction's page: well-formed, escaped, and with every mark at its value's position."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.evaluation.evaluate import evaluate
from features.documents.extraction.evaluation.gold import GoldDocument
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.report.marks import Mark, segments
from features.documents.extraction.report.page import report

TEXT = "Invoice R-17 of Miller <Ltd> & Sons, total 119.00"


class Page(HTMLParser):
    """A parsed page: whether its elements are closed, the ids, the links, and the marked texts."""

    VOID = ("meta", "br", "rect", "line", "polyline")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.marked: list[str] = []
        self.shown: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name == "href" and value]
        self.sources += [value for name, value in attrs if name in ("src", "data", "action") and value]
        assert not [name for name in values if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "mark":
            self.marked.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "mark" in self.open:
            self.marked[-1] += data
        if "pre" in self.open:
            self.shown.append(data)


def evidence(path: str, value: Any, quote: str | None = None, **changes: Any) -> dict[str, Any]:
    start = TEXT.index(quote) if quote else 0
    spans = [{"start": start, "end": start + len(quote), "page": 0, "box": None}] if quote else []
    known = {"path": path, "value": value, "quote": quote, "grounding": "exact", "likeness": 1.0, "spans": spans}
    return {**known, "score": 0.9, "level": "high", "review": False, "reasons": [], **changes}


def record(name: str, *values: dict[str, Any], error: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"document": name, "error": error, "fields": {}, "evidence": list(values)}


RECORD = record(
    "a<b>.pdf",
    evidence("number", "R-17", "R-17"),
    evidence("vendor.name", "Miller <Ltd>", "Miller <Ltd> & Sons"),
    evidence("total", 118.0, "119.00", score=0.2, level="low", review=True, reasons=["its quote does not hold it"]),
    evidence("due", None),
)


def test_values_are_marked_in_the_text_and_linked() -> None:
    page = Page(report([RECORD], {"a<b>.pdf": TEXT}))
    assert page.open == []
    assert page.marked == ["R-17", "Miller <Ltd> & Sons", "119.00"]
    assert "".join(page.shown) == TEXT
    targets = [link.removeprefix("#") for link in page.links]
    assert set(targets) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids)) == 4


def test_nothing_is_loaded_from_elsewhere_and_nothing_runs() -> None:
    text = report([RECORD], {"a<b>.pdf": TEXT})
    page = Page(text)
    assert page.sources == []
    assert not {"script", "link", "img", "iframe", "object"} & page.tags
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"url\(|@import|https?:", text)


def test_what_documents_say_is_text_and_no_markup() -> None:
    hostile = "</pre></mark><script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    found = {**evidence("number", hostile, "R-17"), "path": hostile, "reasons": [hostile]}
    failure = {"code": hostile, "message": hostile, "page": 2}
    page = Page(report([record(hostile, found), record("b", error=failure)], {hostile: hostile + TEXT}, title=hostile))
    assert not {"script", "img"} & page.tags
    assert page.open == []


def test_a_failed_document_says_why_and_comes_first() -> None:
    text = report([RECORD, record("b.pdf", error={"code": "encrypted", "message": "it has a password"})], {})
    assert "it has a password" in text
    assert text.index("#document-1") < text.index("#document-0")


def test_gold_brings_a_table_and_two_plots() -> None:
    schema = FieldSchema.parse({"type": "object", "properties": {"number": {"type": "string"}}})
    gold = {"a": GoldDocument(document="a", fields={"number": "R-17"}, spans={})}
    records = [{**record("a", evidence("number", "R-17", "R-17")), "fields": {"number": "R-17"}}]
    page = Page(report(records, {"a": TEXT}, evaluation=evaluate(schema, records, gold)))
    assert {"svg", "polyline", "circle"} <= page.tags


def test_the_page_says_what_was_noted_of_a_document() -> None:
    page = report([{**RECORD, "notes": ["2 of 3 pages have no <text>"]}], {})
    assert "Note: 2 of 3 pages have no &lt;text&gt;" in page


def test_an_answer_that_stands_nowhere_is_shown_beside_null() -> None:
    withheld = evidence("total", None, answer="<99.99>", note="not_in_document", review=True)
    page = report([record("a", withheld)], {})
    assert "answered: &lt;99.99&gt;" in page
    assert "0 of 1" in page


def test_fifty_documents_are_one_page() -> None:
    records = [{**RECORD, "document": str(number)} for number in range(50)]
    page = Page(report(records, {str(number): TEXT for number in range(50)}))
    assert len([name for name in page.ids if name.startswith("document-")]) == 50


MARKS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6)


@given(st.text(max_size=60), MARKS)
def test_segments_are_the_text_and_each_character_has_its_marks(text: str, placed: list[tuple[int, int]]) -> None:
    marks = [Mark(start=start, end=start + length, index=index) for index, (start, length) in enumerate(placed)]
    found = segments(text, marks)
    assert "".join(segment.text for segment in found) == text
    by_character = [segment.indexes for segment in found for _ in segment.text]
    for offset, indexes in enumerate(by_character):
        assert set(indexes) == {mark.index for mark in marks if mark.start <= offset < mark.end}
    begun = [index for segment in found for index in segment.begins]
    assert sorted(begun) == sorted({mark.index for mark in marks if mark.start < len(text)})


def test_of_a_long_text_the_parts_around_marks_are_shown() -> None:
    text = "x" * 5000 + "here" + "y" * 5000
    found = segments(text, [Mark(start=5000, end=5004, index=0)], max_characters=1000)
    assert sum(len(segment.text) + segment.left_out for segment in found) == len(text)
    assert [segment.text for segment in found if segment.indexes] == ["here"]
    assert sum(len(segment.text) for segment in found) < 2000
