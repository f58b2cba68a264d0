"""Tests of the long documents benchmark: one page states the fields, and right values on the right page count."""

from __future__ import annotations

from typing import Any

from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from lab.extraction.long_documents import LongDocument, make_document, measure

STATED = {"type": "invoice", "vendor": "Ash Ltd", "number": "R-17", "total": 12.5, "pieces": None}


def answered(page: int, **values: Any) -> dict[str, Any]:
    evidence = [
        {"path": name, "value": value, "spans": [] if value is None else [{"page": page}]}
        for name, value in values.items()
    ]
    return {"evidence": evidence}


def test_one_page_states_the_fields() -> None:
    made = make_document(4, seed=1)
    document = parse(made.content, "a.pdf", Limits())
    page = document.pages[made.page]
    assert len(document.pages) == 4
    assert str(made.fields["vendor"]) in document.text[page.start : page.end]
    assert make_document(4, seed=1) == made


def test_what_is_right_and_stands_on_the_page_counts() -> None:
    documents = [LongDocument(content=b"", page=3, fields=STATED)] * 3
    found = measure(
        documents,
        [
            answered(3, type="invoice", vendor="ash  ltd", number="R-17", total=12.5, pieces=None),
            answered(2, type="receipt", vendor="Ash Ltd", number=None, total=13.0, pieces=4),
            {"evidence": []},
        ],
    )
    assert (found.num_right, found.num_values) == (5, 12)
    assert (found.num_placed, found.num_to_place) == (3, 4)
    assert (found.num_null_right, found.num_null) == (2, 3)
    assert found.wrong[:2] == ("type: 'receipt', stated 'invoice'", "number: None, stated 'R-17'")
