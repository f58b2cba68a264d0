"""Seven layouts of the facts of a business document as text."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum


class Kind(StrEnum):
    """Kinds of document, as the answers spell them."""

    RECEIPT = "receipt"
    INVOICE = "invoice"
    DELIVERY_NOTE = "delivery note"
    CREDIT_NOTE = "credit note"
    QUOTATION = "quotation"


class Extra(StrEnum):
    """Optional content of a document beside its fields."""

    ADDRESS = "address"
    PHONE = "phone"
    CUSTOMER = "customer"
    DUE_DATE = "due date"
    ORDER = "order"
    TAX = "tax"
    CASH = "cash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One position; price_cents is for all its pieces together."""

    name: str
    quantity: int
    price_cents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The content of a document, independent of its layout; extras lists the optional facts that it states."""

    kind: Kind
    heading: str
    vendor: str
    number: str | None
    day: date
    date_style: Callable[[date], str]
    items: tuple[Item, ...]
    tax_percent: int
    currency: str
    extras: frozenset[Extra]
    address: str
    phone: str
    customer: str
    due_day: date
    order: str

    @property
    def net_cents(self) -> int:
        return sum(item.price_cents for item in self.items)

    @property
    def tax_cents(self) -> int:
        return round(self.net_cents * self.tax_percent / 100) if Extra.TAX in self.extras else 0

    @property
    def total_cents(self) -> int:
        return self.net_cents + self.tax_cents

    @property
    def num_pieces(self) -> int:
        return sum(item.quantity for item in self.items)


Layout = Callable[[Facts, random.Random], list[str]]

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "CHF": "Fr. "}

DATE_STYLES: tuple[Callable[[date], str], ...] = (
    date.isoformat,
    lambda day: f"{day.day:02d}.{day.month:02d}.{day.year}",
    lambda day: f"{day.day:02d}/{day.month:02d}/{day.year}",
    lambda day: f"{day.day:02d} {_MONTHS[day.month - 1]} {day.year}",
)


def money(cents: int) -> str:
    """Return an amount with two decimals."""
    return f"{cents // 100}.{cents % 100:02d}"


def shown_date(facts: Facts) -> str:
    """Return the day in the document's date style."""
    return facts.date_style(facts.day)


def shown_total(facts: Facts, rng: random.Random) -> str:
    """Return the sum with its currency, in one of three forms."""
    total = money(facts.total_cents)
    shapes = (f"{facts.currency} {total}", f"{total} {facts.currency}", f"{SYMBOLS[facts.currency]}{total}")
    return rng.choice(shapes)


def _heading_with_number(facts: Facts) -> str:
    return facts.heading if facts.number is None else f"{facts.heading} {facts.number}"


def _contact_lines(facts: Facts) -> list[str]:
    lines = {Extra.ADDRESS: facts.address, Extra.PHONE: f"Tel {facts.phone}"}
    return [line for extra, line in lines.items() if extra in facts.extras]


def _reference_lines(facts: Facts, rng: random.Random) -> list[str]:
    due = "Valid until" if facts.kind is Kind.QUOTATION else rng.choice(("Due", "Pay by"))
    lines = {
        Extra.CUSTOMER: f"{rng.choice(('To', 'Customer', 'Bill to'))}: {facts.customer}",
        Extra.DUE_DATE: f"{due}: {facts.date_style(facts.due_day)}",
        Extra.ORDER: f"{rng.choice(('Order', 'Your order'))}: {facts.order}",
    }
    return [line for extra, line in lines.items() if extra in facts.extras]


def _item_lines(facts: Facts) -> list[str]:
    if facts.kind is Kind.DELIVERY_NOTE:
        return [f"{item.quantity} x {item.name}" for item in facts.items]
    return [f"{item.quantity} x {item.name} {money(item.price_cents)}" for item in facts.items]


def _tax_lines(facts: Facts) -> list[str]:
    if Extra.TAX not in facts.extras:
        return []
    return [f"Net {money(facts.net_cents)}", f"VAT {facts.tax_percent}% {money(facts.tax_cents)}"]


def _closing_line(facts: Facts, rng: random.Random) -> str:
    if facts.kind is Kind.DELIVERY_NOTE:
        return f"{rng.choice(('Pieces', 'Total pieces', 'Quantity'))}: {facts.num_pieces}"
    return f"{rng.choice(('Total', 'TOTAL', 'Amount', 'Sum'))}: {shown_total(facts, rng)}"


def _cash_lines(facts: Facts) -> list[str]:
    if Extra.CASH not in facts.extras:
        return []
    given_cents = (facts.total_cents // 5000 + 1) * 5000
    return [f"Cash {money(given_cents)}", f"Change {money(given_cents - facts.total_cents)}"]


def _amount_lines(facts: Facts, rng: random.Random) -> list[str]:
    return [*_item_lines(facts), *_tax_lines(facts), _closing_line(facts, rng), *_cash_lines(facts)]


def _labelled(facts: Facts, rng: random.Random) -> list[str]:
    middle = [
        f"{rng.choice(('From', 'Seller', 'Vendor'))}: {facts.vendor}",
        f"{rng.choice(('Date', 'Issued'))}: {shown_date(facts)}",
        *_reference_lines(facts, rng),
    ]
    if facts.number is not None:
        middle.append(f"{rng.choice(('No', 'Number', 'Ref'))}: {facts.number}")
    rng.shuffle(middle)
    return [facts.heading, *middle, *_contact_lines(facts), *_amount_lines(facts, rng)]


def _letterhead(facts: Facts, rng: random.Random) -> list[str]:
    opening = [facts.vendor, *_contact_lines(facts), "", _heading_with_number(facts), shown_date(facts)]
    return [*opening, *_reference_lines(facts, rng), *_amount_lines(facts, rng)]


def _till_roll(facts: Facts, rng: random.Random) -> list[str]:
    time = f"{rng.randint(8, 19):02d}:{rng.randint(0, 59):02d}"
    opening = [f"** {facts.vendor} **", *_contact_lines(facts), facts.heading]
    closing = [f"{shown_date(facts)} {time}"] + ([] if facts.number is None else [f"No {facts.number}"])
    return [*opening, *_amount_lines(facts, rng), *closing, *_reference_lines(facts, rng)]


def _table(facts: Facts, rng: random.Random) -> list[str]:
    cells = [facts.heading, facts.number, shown_date(facts)]
    opening = [" | ".join(cell for cell in cells if cell is not None), f"Seller | {facts.vendor}"]
    rows = [*_reference_lines(facts, rng), *_contact_lines(facts), *_amount_lines(facts, rng)]
    return opening + [row.replace(": ", " | ") for row in rows]


def _report(facts: Facts, rng: random.Random) -> list[str]:
    opening = f"{_heading_with_number(facts)}, {rng.choice(('issued', 'sent'))} on {shown_date(facts)}"
    contact = "".join(f", {line}" for line in _contact_lines(facts))
    sentences = [f"{opening} by {facts.vendor}{contact}.", *(f"{line}." for line in _reference_lines(facts, rng))]
    return [" ".join(sentences), "; ".join([*_item_lines(facts), *_tax_lines(facts)]) + ".", _closing_line(facts, rng)]


def _letter(facts: Facts, rng: random.Random) -> list[str]:
    addressee = facts.customer if Extra.CUSTOMER in facts.extras else "customer"
    opening = [f"Dear {addressee},", f"here is our {_heading_with_number(facts)} of {shown_date(facts)}:"]
    unnamed = replace(facts, extras=facts.extras - {Extra.CUSTOMER})
    closing = [rng.choice(("Kind regards", "Yours", "Thank you")), facts.vendor, *_contact_lines(facts)]
    return [*opening, *_amount_lines(facts, rng), *_reference_lines(unnamed, rng), *closing]


def _record(facts: Facts, rng: random.Random) -> list[str]:
    cells = [
        f"doc={facts.heading}",
        *([] if facts.number is None else [f"no={facts.number}"]),
        f"date={shown_date(facts)}",
        f"seller={facts.vendor}",
        *(line.replace(": ", "=") for line in _reference_lines(facts, rng)),
    ]
    return ["; ".join(cells), *_contact_lines(facts), *_amount_lines(facts, rng)]


LAYOUTS: tuple[Layout, ...] = (_labelled, _letterhead, _till_roll, _table, _report, _letter, _record)
