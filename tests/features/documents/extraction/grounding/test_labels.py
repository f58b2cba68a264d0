"""Tests of the words of a field beside a value: they choose between equal values, and are a check of their own."""

from __future__ import annotations

from typing import Any

import pytest

from features.documents.extraction.fields.leaf import Leaf, LeafType
from features.documents.extraction.fields.paths import ITEM
from features.documents.extraction.grounding.align import Sought, ground
from features.documents.extraction.grounding.labels import label_of, stands_beside
from features.documents.extraction.grounding.spans import Span

RECEIPT = """Room 107
1 x dinner   107.00
Subtotal     107.00
Cash 107.00
Grand total  107.00
Due date
4 May 2026
"""


def leaf(*path: Any) -> Leaf:
    return Leaf(path=path, type=LeafType.STRING)


@pytest.mark.parametrize(
    ("path", "label"),
    [
        (("grand_total",), {"grand", "total"}),
        (("grandTotal",), {"grand", "total"}),
        (("vendor", "IBAN"), {"iban"}),
        (("invoice_number",), {"invoice"}),
        (("no",), set()),
        (("items", ITEM, "total"), set()),
    ],
)
def test_a_label_is_the_telling_words_of_a_fields_name(path: tuple[Any, ...], label: set[str]) -> None:
    assert label_of(leaf(*path)) == label


@pytest.mark.parametrize("quote", [None, "107.00"])
@pytest.mark.parametrize(("name", "line"), [("total", 4), ("cash", 3), ("subtotal", 2), ("tip", 1)])
def test_of_equal_values_the_one_beside_its_fields_words_is_taken(name: str, line: int, quote: str | None) -> None:
    sought = Sought(value="107.00", kind=leaf(name).kind, quote=quote, is_copied=True, label=label_of(leaf(name)))
    (found,) = ground([sought], RECEIPT)
    assert RECEIPT.count("\n", 0, found.spans[0].start) == line


@pytest.mark.parametrize(
    ("name", "value", "stands"),
    [
        ("total", "Grand total  107.00", True),
        ("totals", "Cash 107.00", False),
        ("due_date", "4 May 2026", True),
        ("vendor", "Room 107", None),
        ("total", "Room 107", False),
    ],
)
def test_a_label_is_beside_a_value_elsewhere_or_nowhere(name: str, value: str, stands: bool | None) -> None:
    start = RECEIPT.index(value)
    assert stands_beside(Span(start, start + len(value)), label_of(leaf(name)), RECEIPT) is stands
