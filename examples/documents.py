"""Generate short business documents together with the fields they state.

Pure functions of a seed: no torch, no files, no clock. The same split, seed and index always give the same document.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

from examples.document_layouts import DATE_STYLES, LAYOUTS, Extra, Facts, Item, Kind, money

INSTRUCTION = "Extract the fields as JSON."


class Split(StrEnum):
    """A stream of documents; streams never share a random seed."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    DEMO = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document's text and its gold fields, in the order of the answer."""

    text: str
    fields: dict[str, str]


def make_document(rng: random.Random) -> Document:
    """Draw one document."""
    return lay_out(draw_facts(rng), rng)


def lay_out(facts: Facts, rng: random.Random) -> Document:
    """Write facts in a random layout."""
    layout = rng.choice(LAYOUTS)
    return Document(text="\n".join(layout(facts, rng)), fields=_gold_fields(facts))


def make_documents(count: int, *, split: Split, seed: int = 0, start: int = 0) -> Iterator[Document]:
    """Yield documents start … start + count − 1 of a stream; each depends only on its own index."""
    for index in range(start, start + count):
        yield make_document(random.Random(f"{split}/{seed}/{index}"))


def answer_text(document: Document) -> str:
    """Return the gold answer: compact JSON in field order."""
    return json.dumps(document.fields, separators=(",", ":"), ensure_ascii=False)


def chat_messages(document: Document) -> list[dict[str, str]]:
    """Return the request for a document as chat messages (system, user)."""
    return [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": document.text}]


def exact_fields(document: Document, answer: str) -> set[str]:
    """Return the names of the gold fields that an answer states exactly; none if it is not a JSON object."""
    try:
        stated = json.loads(answer)
    except json.JSONDecodeError:
        return set()
    if not isinstance(stated, dict):
        return set()
    return {name for name, value in document.fields.items() if stated.get(name) == value}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_HEADINGS = {
    Kind.RECEIPT: ("Receipt", "RECEIPT", "Sales receipt"),
    Kind.INVOICE: ("Invoice", "INVOICE", "Tax invoice"),
    Kind.DELIVERY_NOTE: ("Delivery note", "DELIVERY NOTE", "Packing slip"),
    Kind.CREDIT_NOTE: ("Credit note", "CREDIT NOTE", "Refund note"),
    Kind.QUOTATION: ("Quotation", "QUOTATION", "Offer"),
}
_NUMBER_PREFIXES = {
    Kind.RECEIPT: ("R-", "POS-", ""),
    Kind.INVOICE: ("INV-", "RE-", ""),
    Kind.DELIVERY_NOTE: ("DN-", "LS-", ""),
    Kind.CREDIT_NOTE: ("CN-", "GS-", ""),
    Kind.QUOTATION: ("Q-", "AN-", ""),
}
_EXTRAS = {
    Kind.RECEIPT: (Extra.ADDRESS, Extra.PHONE, Extra.TAX, Extra.CASH),
    Kind.INVOICE: (Extra.ADDRESS, Extra.PHONE, Extra.CUSTOMER, Extra.DUE_DATE, Extra.ORDER, Extra.TAX),
    Kind.DELIVERY_NOTE: (Extra.ADDRESS, Extra.PHONE, Extra.CUSTOMER, Extra.ORDER),
    Kind.CREDIT_NOTE: (Extra.ADDRESS, Extra.PHONE, Extra.CUSTOMER, Extra.ORDER, Extra.TAX),
    Kind.QUOTATION: (Extra.ADDRESS, Extra.PHONE, Extra.CUSTOMER, Extra.DUE_DATE, Extra.TAX),
}
_NAMES = _words("""
    Adler Alvarez Anders Archer Åberg Bauer Becker Bennett Berg Bishop Blake Brandt Brook Carver Castell Clark Colby
    Conrad Cooper Dalton Delgado Doyle Draper Ebert Eklund Ellis Falk Ferrer Fischer Flynn Forster Frost Garner Gibson
    Graf Hale Hansen Harper Hart Hayes Heller Holm Huber Hughes Ives Jansen Jensen Kaiser Keller Kemp Klein Koch Køhler
    Lang Larsen Lefèvre Lindt Lopez Lorenz Marsh Martel Mercer Meyer Miller Moreau Morris Müller Nagel Newton Nolan
    Norden Núñez Olsen Osborn Parker Pavel Peters Porter Quinn Ramos Reed Reyes Richter Roth Rossi Salas Sander Schäfer
    Shaw Silva Sommer Stein Stone Sutton Tanner Thorne Turner Ulrich Vance Vega Vogel Wagner Walsh Weber Weiss Wells
    Winter Wolff York Ziegler
""")
_TRADES = _words("""
    Bakery Books Café Chemicals Consulting Electric Engineering Farms Flowers Foods Freight Garage Hardware Hotel
    Interiors Logistics Machines Market Media Metals Office Optics Paints Paper Pharmacy Plastics Print Services
    Software Steel Studio Supplies Tools Trading Travel Timber Textiles
""")
_FORMS = ("", "", "", " Ltd", " GmbH", " Inc")
_SYLLABLES = _words("bal cor den far gor hal kin lor mar nor pel rin sol tor ven wil zan bri dra fle")
_ENDINGS = _words("a o en is ex um ia on")
_STREETS = _words("Mill Station Church Harbor Garden Bridge Market River King Forest")
_GOODS = _words("""
    Bread Cable Chairs Coffee Cups Desk Filter Folders Glue Hammer Ink Juice Keyboard Labels Lamp Milk Nails Paint
    Paper Pens Printer Rice Rope Salt Screws Shelf Soap Switch Tape Tea Toner Tiles Water Wire Wrench
""")
_CURRENCIES = ("EUR", "USD", "GBP", "CHF")
_FIRST_DAY = date(2021, 1, 1)
_NUM_DAYS = 7 * 365


def _gold_fields(facts: Facts) -> dict[str, str]:
    number = {} if facts.number is None else {"number": facts.number}
    fields = {"type": facts.kind.value, "vendor": facts.vendor, **number, "date": facts.day.isoformat()}
    if facts.kind is Kind.DELIVERY_NOTE:
        return fields | {"pieces": str(facts.num_pieces)}
    return fields | {"total": money(facts.total_cents), "currency": facts.currency}


def draw_facts(rng: random.Random) -> Facts:
    """Draw the facts of a document of any kind."""
    kind = rng.choice(tuple(Kind))
    day = _FIRST_DAY + timedelta(days=rng.randrange(_NUM_DAYS))
    return Facts(
        kind=kind,
        heading=rng.choice(_HEADINGS[kind]),
        vendor=_draw_company(rng),
        number=_draw_number(rng, kind),
        day=day,
        date_style=rng.choice(DATE_STYLES),
        items=_draw_items(rng),
        tax_percent=rng.choice((5, 7, 8, 19, 20)),
        currency=rng.choice(_CURRENCIES),
        extras=frozenset(rng.sample(_EXTRAS[kind], rng.randint(0, 2))),
        address=f"{rng.randint(1, 99)} {rng.choice(_STREETS)} Street",
        phone=f"0{rng.randint(20, 99)} {_digits(rng, 5)}",
        customer=_draw_company(rng),
        due_day=day + timedelta(days=rng.choice((7, 10, 14, 30, 60))),
        order=_digits(rng, rng.randint(3, 5)),
    )


def _draw_number(rng: random.Random, kind: Kind) -> str | None:
    """Draw a document number; one receipt in three has none."""
    number = rng.choice(_NUMBER_PREFIXES[kind]) + _digits(rng, rng.randint(4, 6))
    return None if kind is Kind.RECEIPT and rng.random() < 1 / 3 else number


def _draw_company(rng: random.Random) -> str:
    shape = rng.random()
    if shape < 0.1:
        return f"{rng.choice(_NAMES)} & {rng.choice(_NAMES)}{rng.choice(_FORMS)}"
    name = rng.choice(_NAMES) if shape < 0.7 else _invent_name(rng)
    return f"{name} {rng.choice(_TRADES)}{rng.choice(_FORMS)}"


def _invent_name(rng: random.Random) -> str:
    return (rng.choice(_SYLLABLES) + rng.choice(_SYLLABLES) + rng.choice(_ENDINGS)).capitalize()


def _draw_items(rng: random.Random) -> tuple[Item, ...]:
    names = rng.sample(_GOODS, rng.choice((1, 1, 2)))
    return tuple(_draw_item(rng, name) for name in names)


def _draw_item(rng: random.Random, name: str) -> Item:
    quantity = rng.randint(1, 12)
    return Item(name=name, quantity=quantity, price_cents=quantity * rng.choice((5, 10, 25)) * rng.randint(10, 900))


def _digits(rng: random.Random, count: int) -> str:
    return str(rng.randint(10 ** (count - 1), 10**count - 1))
