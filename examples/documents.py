"""Generate short business documents together with the fields they state.

Pure functions of a seed: no torch, no files, no clock. The same split, seed and index give the same document forever.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

INSTRUCTION = "Extract the fields as JSON."


class Split(StrEnum):
    """Name a stream of documents; streams never share a random seed."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    DEMO = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Hold a document's text and its gold fields, in the order of the answer."""

    text: str
    fields: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Hold one position of a document; price_cents is for one piece."""

    name: str
    quantity: int
    price_cents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Hold what a document says, before a layout decides how it says it."""

    kind: str
    heading: str
    vendor: str
    address: str
    number: str
    date: str
    currency: str
    items: tuple[Item, ...]
    total: str


_KINDS = ("receipt", "invoice", "delivery note", "credit note", "quotation")
_HEADINGS = {
    "receipt": ("Receipt", "RECEIPT", "Sales receipt"),
    "invoice": ("Invoice", "INVOICE", "Tax invoice"),
    "delivery note": ("Delivery note", "DELIVERY NOTE", "Packing slip"),
    "credit note": ("Credit note", "CREDIT NOTE", "Refund note"),
    "quotation": ("Quotation", "QUOTATION", "Offer"),
}
_NUMBER_PREFIXES = {
    "receipt": ("R-", "POS-", ""),
    "invoice": ("INV-", "RE-", ""),
    "delivery note": ("DN-", "LS-", ""),
    "credit note": ("CN-", "GS-", ""),
    "quotation": ("Q-", "AN-", ""),
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NAMES = _words("""
    Adler Alvarez Anders Archer Bauer Becker Bennett Berg Bishop Blake Brandt Brook Carver Castell Clark Colby Conrad
    Cooper Dalton Delgado Doyle Draper Ebert Eklund Ellis Falk Ferrer Fischer Flynn Forster Frost Garner Gibson Graf
    Hale Hansen Harper Hart Hayes Heller Holm Huber Hughes Ives Jansen Jensen Kaiser Keller Kemp Klein Koch Lang
    Larsen Lindt Lopez Lorenz Marsh Martel Mercer Meyer Miller Moreau Morris Nagel Newton Nolan Norden Olsen Osborn
    Parker Pavel Peters Porter Quinn Ramos Reed Reyes Richter Roth Rossi Salas Sander Schmidt Shaw Silva Sommer Stein
    Stone Sutton Tanner Thorne Turner Ulrich Vance Vega Vogel Wagner Walsh Weber Weiss Wells Winter Wolff York Ziegler
""")
_TRADES = _words("""
    Bakery Books Cafe Chemicals Consulting Electric Engineering Farms Flowers Foods Freight Garage Hardware Hotel
    Interiors Logistics Machines Market Media Metals Office Optics Paints Paper Pharmacy Plastics Print Services
    Software Steel Studio Supplies Tools Trading Travel Timber Textiles
""")
_FORMS = ("", "", " Ltd", " GmbH", " Inc")
_SYLLABLES = _words("bal cor den far gor hal kin lor mar nor pel rin sol tor ven wil zan bri dra fle")
_ENDINGS = _words("a o en is ex um ia on")
_STREETS = _words("Mill Station Church Harbor Garden Bridge Market River King Forest")
_GOODS = _words("""
    Bread Cable Chairs Coffee Cups Desk Filter Folders Glue Hammer Ink Juice Keyboard Labels Lamp Milk Nails Paint
    Paper Pens Printer Rice Rope Salt Screws Shelf Soap Switch Tape Tea Toner Tiles Water Wire Wrench
""")
_CURRENCIES = ("EUR", "USD", "GBP", "CHF")
_SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "CHF": "CHF "}


def make_document(rng: random.Random) -> Document:
    """Draw one document."""
    facts = _draw_facts(rng)
    layout = rng.choice(_LAYOUTS)
    return Document(text="\n".join(layout(facts, rng)), fields=_gold_fields(facts))


def make_documents(count: int, *, split: Split, seed: int = 0, start: int = 0) -> Iterator[Document]:
    """Yield documents start … start + count − 1 of a stream; each depends on its own index alone."""
    for index in range(start, start + count):
        yield make_document(random.Random(f"{split}/{seed}/{index}"))


def answer_text(document: Document) -> str:
    """Return the gold answer: compact JSON in field order."""
    return json.dumps(document.fields, separators=(",", ":"), ensure_ascii=False)


def chat_messages(document: Document) -> list[dict[str, str]]:
    """Return the request for a document as chat messages (system, user)."""
    return [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": document.text}]


def exact_fields(document: Document, answer: str) -> set[str]:
    """Return the names of the gold fields that an answer states exactly; none if it is no JSON object."""
    try:
        stated = json.loads(answer)
    except json.JSONDecodeError:
        return set()
    if not isinstance(stated, dict):
        return set()
    return {name for name, value in document.fields.items() if stated.get(name) == value}


def _gold_fields(facts: Facts) -> dict[str, str]:
    fields = {"type": facts.kind, "vendor": facts.vendor, "number": facts.number, "date": facts.date}
    if facts.kind == "delivery note":
        return fields | {"pieces": str(sum(item.quantity for item in facts.items))}
    return fields | {"total": facts.total, "currency": facts.currency}


def _draw_facts(rng: random.Random) -> Facts:
    kind = rng.choice(_KINDS)
    items = _draw_items(rng)
    total_cents = sum(item.quantity * item.price_cents for item in items)
    return Facts(
        kind=kind,
        heading=rng.choice(_HEADINGS[kind]),
        vendor=_draw_vendor(rng),
        address=f"{rng.randint(1, 99)} {rng.choice(_STREETS)} Street",
        number=rng.choice(_NUMBER_PREFIXES[kind]) + _digits(rng, rng.randint(4, 6)),
        date=f"{rng.randint(2021, 2027)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
        currency=rng.choice(_CURRENCIES),
        items=items,
        total=_money(total_cents),
    )


def _draw_vendor(rng: random.Random) -> str:
    known = rng.random() < 0.7
    name = rng.choice(_NAMES) if known else _invent_name(rng)
    return f"{name} {rng.choice(_TRADES)}{rng.choice(_FORMS)}"


def _invent_name(rng: random.Random) -> str:
    return (rng.choice(_SYLLABLES) + rng.choice(_SYLLABLES) + rng.choice(_ENDINGS)).capitalize()


def _draw_items(rng: random.Random) -> tuple[Item, ...]:
    names = rng.sample(_GOODS, rng.choice((1, 1, 2)))
    return tuple(
        Item(name=name, quantity=rng.randint(1, 9), price_cents=rng.choice((5, 10, 25)) * rng.randint(10, 900))
        for name in names
    )


def _digits(rng: random.Random, count: int) -> str:
    return str(rng.randint(10 ** (count - 1), 10**count - 1))


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def _shown_date(facts: Facts, rng: random.Random) -> str:
    year, month, day = facts.date.split("-")
    return rng.choice((facts.date, facts.date, f"{day}.{month}.{year}"))


def _shown_total(facts: Facts, rng: random.Random) -> str:
    return rng.choice(
        (
            f"{facts.currency} {facts.total}",
            f"{facts.total} {facts.currency}",
            f"{_SYMBOLS[facts.currency]}{facts.total}",
        )
    )


def _item_lines(facts: Facts) -> list[str]:
    if facts.kind == "delivery note":
        return [f"{item.quantity} x {item.name}" for item in facts.items]
    return [f"{item.quantity} x {item.name} {_money(item.quantity * item.price_cents)}" for item in facts.items]


def _closing_line(facts: Facts, rng: random.Random) -> str:
    if facts.kind == "delivery note":
        label = rng.choice(("Pieces", "Total pieces", "Quantity"))
        return f"{label}: {sum(item.quantity for item in facts.items)}"
    return f"{rng.choice(('Total', 'TOTAL', 'Amount', 'Sum'))}: {_shown_total(facts, rng)}"


def _labelled(facts: Facts, rng: random.Random) -> list[str]:
    middle = [
        f"{rng.choice(('From', 'Seller', 'Vendor'))}: {facts.vendor}",
        f"{rng.choice(('No', 'Number', 'Ref'))}: {facts.number}",
        f"{rng.choice(('Date', 'Issued'))}: {_shown_date(facts, rng)}",
    ]
    rng.shuffle(middle)
    return [facts.heading, *middle, *_item_lines(facts), _closing_line(facts, rng)]


def _letterhead(facts: Facts, rng: random.Random) -> list[str]:
    opening = [facts.vendor, facts.address, "", f"{facts.heading} {facts.number}", _shown_date(facts, rng)]
    return [*opening, *_item_lines(facts), _closing_line(facts, rng)]


def _till_roll(facts: Facts, rng: random.Random) -> list[str]:
    opening = [f"** {facts.vendor} **", facts.heading]
    closing = [f"{_shown_date(facts, rng)} {rng.randint(8, 19):02d}:{rng.randint(0, 59):02d}", f"No {facts.number}"]
    return [*opening, *_item_lines(facts), _closing_line(facts, rng), *closing]


def _table(facts: Facts, rng: random.Random) -> list[str]:
    opening = [f"{facts.heading} | {facts.number} | {_shown_date(facts, rng)}", f"Seller | {facts.vendor}"]
    return [*opening, *_item_lines(facts), _closing_line(facts, rng).replace(": ", " | ")]


def _sentence(facts: Facts, rng: random.Random) -> list[str]:
    verb = rng.choice(("issued", "sent"))
    opening = f"{facts.heading} {facts.number}, {verb} on {_shown_date(facts, rng)} by {facts.vendor}."
    return [opening, "; ".join(_item_lines(facts)) + ".", _closing_line(facts, rng)]


_LAYOUTS: tuple[Callable[[Facts, random.Random], list[str]], ...] = (
    _labelled,
    _letterhead,
    _till_roll,
    _table,
    _sentence,
)
