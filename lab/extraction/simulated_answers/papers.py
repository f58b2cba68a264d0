"""Invoices and receipts of generated layouts, with the true values of their fields and other values beside them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "vendor": {"type": "string", "description": "the company that sells"},
        "customer": {"type": "string", "description": "the company that buys"},
        "number": {"type": "string", "description": "the number of the invoice"},
        "order": {"type": "string", "description": "the number of the order"},
        "issued": {"type": "string", "format": "date", "description": "the date of the invoice"},
        "due": {"type": "string", "format": "date", "description": "the day by which it is to be paid"},
        "total": {"type": "number", "x-tokenmill": {"metric": "money"}},
        "tax": {"type": "number", "x-tokenmill": {"metric": "money"}},
    },
}
FIELDS = tuple(SCHEMA["properties"])
_LABELS: Mapping[str, Sequence[str]] = {
    "vendor": ["Seller", "Vendor", "Supplier", "From", "Company", "Sold by", "Issuer"],
    "customer": ["Customer", "Buyer", "Bill to", "Client", "Company", "Sold to", "Attention"],
    "number": ["Invoice number", "Invoice no.", "Number", "Document", "Reference", "No.", "Bill"],
    "order": ["Order number", "Order", "Your order", "Purchase order", "Reference", "PO", "Contract"],
    "issued": ["Invoice date", "Issued", "Date", "Dated", "Day", "Issue date", "Written"],
    "due": ["Due date", "Due", "Payable by", "Pay until", "Day", "Due on", "Deadline"],
    "total": ["Total", "Grand total", "Amount due", "Total due", "Amount", "Balance", "To pay"],
    "tax": ["Tax", "VAT", "Sales tax", "Tax amount", "Amount", "GST", "Duty"],
}
"""Of each, the fifth is another field's, too."""
KNOWN_LABELS = 5
"""The first of each that papers for calibration have; the others have all."""
ALL_LABELS = 7
_ABSENT_SHARE = 0.12
_NAMES = ("Harbour", "Lindgren", "Castell", "Brook", "Maple", "Orchard", "Sterling", "Fenwick", "Alder", "Quarry")
_TRADES = ("Trading", "Hotels", "Supplies", "Motors", "Catering", "Textiles", "Printing", "Gardens", "Bakery")
_FORMS = ("Ltd", "GmbH", "Inc", "LLC", "& Sons", "BV")
_KINDS = {
    **dict.fromkeys(("vendor", "customer"), "company"),
    **dict.fromkeys(("number", "order"), "code"),
    **dict.fromkeys(("issued", "due"), "day"),
    **dict.fromkeys(("total", "tax"), "amount"),
}
_BESIDE = {"company": "Carrier", "code": "Customer no.", "day": "Delivered", "amount": "Subtotal"}
"""A value of each kind that no field asks for, and its label."""
_DAYS = ("%Y-%m-%d", "%d.%m.%Y", "%d %B %Y", "%B %d, %Y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A value that a paper states, and the words that hold it."""

    value: Any
    quote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPaper:
    """A paper; `fields` has None for a field that it does not state."""

    name: str
    text: str
    fields: Mapping[str, Stated | None]
    beside: Mapping[str, Stated]
    """By kind, a value that no field asks for."""

    def others_like(self, field: str) -> list[Stated]:
        """Return the other values of a field's kind."""
        kind = _KINDS[field]
        own = [stated for name, stated in self.fields.items() if _KINDS[name] == kind and name != field]
        return [stated for stated in [*own, self.beside[kind]] if stated is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    labels: Mapping[str, str]
    order: Sequence[str]
    separator: str
    day: str
    thousands: str
    has_items: bool
    has_table: bool
    """Whether half of the values stand in a row below a row of their labels."""
    has_letterhead: bool
    """Whether the vendor stands at the top without a label."""


def papers(num_layouts: int, *, of_each: int, seed: int, num_labels: int) -> list[SimulatedPaper]:
    """Return so many papers of each of so many layouts, which choose among so many labels for each field."""
    made = []
    for number in range(num_layouts):
        layout = _layout(random.Random(f"{seed} layout {number}"), num_labels)
        for each in range(of_each):
            rng = random.Random(f"{seed} {number} {each}")
            made.append(_paper(f"{seed}-{number}-{each}.txt", layout, rng))
    return made


def _layout(rng: random.Random, num_labels: int) -> _Layout:
    order = [*FIELDS, *_BESIDE]
    rng.shuffle(order)
    return _Layout(
        labels={field: rng.choice(labels[:num_labels]) for field, labels in _LABELS.items()} | _BESIDE,
        order=order,
        separator=rng.choice([": ", "    ", " | ", "\n"]),
        day=rng.choice(_DAYS),
        thousands=rng.choice([",", " ", ""]),
        has_items=rng.random() < 0.5,
        has_table=rng.random() < 0.25,
        has_letterhead=rng.random() < 0.5,
    )


def _paper(name: str, layout: _Layout, rng: random.Random) -> SimulatedPaper:
    stated = {place: _stated(place, layout, rng) for place in layout.order}
    absent = {field for field in FIELDS if rng.random() < _ABSENT_SHARE}
    places = [place for place in layout.order if place not in absent]
    head = []
    if layout.has_letterhead and "vendor" in places:
        places.remove("vendor")
        head = [stated["vendor"].quote, ""]
    tabled = places[: len(places) // 2] if layout.has_table else []
    table = [" | ".join(layout.labels[place] for place in tabled), " | ".join(stated[place].quote for place in tabled)]
    lines = [
        f"{layout.labels[place]}{layout.separator}{stated[place].quote}" for place in places if place not in tabled
    ]
    items = [f"{rng.randint(1, 9)} x {rng.choice(_TRADES).lower()}" for _ in range(4)] if layout.has_items else []
    middle = rng.randint(1, len(lines) - 1)
    text = "\n".join([*head, "INVOICE", "", *lines[:middle], "", *items, *table, "", *lines[middle:], "", "Thank you."])
    return SimulatedPaper(
        name=name,
        text=text,
        fields={field: None if field in absent else stated[field] for field in FIELDS},
        beside={kind: stated[kind] for kind in _BESIDE},
    )


def _stated(place: str, layout: _Layout, rng: random.Random) -> Stated:
    kind = _KINDS.get(place, place)
    if kind == "company":
        name = f"{rng.choice(_NAMES)} {rng.choice(_TRADES)} {rng.choice(_FORMS)}"
        return Stated(value=name, quote=name)
    if kind == "code":
        code = f"{rng.choice('ABCDR')}-{rng.randint(10_000, 99_999)}"
        return Stated(value=code, quote=code)
    if kind == "day":
        day = date(2024, 1, 1) + timedelta(days=rng.randrange(700))
        return Stated(value=day.isoformat(), quote=day.strftime(layout.day))
    cents = rng.randint(1_000, 900_000)
    whole = f"{cents // 100:,}".replace(",", layout.thousands)
    return Stated(value=cents / 100, quote=f"{whole}.{cents % 100:02d}")
