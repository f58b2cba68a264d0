"""Layouts of the facts of a business document on a page of paper; the demo model was not trained on two of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from examples.document_layouts import Extra, Facts, Kind, money, shown_date, shown_total
from lab.extraction.pdf_writer import PdfPage, Words

LEFT, MIDDLE, RIGHT = 56.0, 300.0, 440.0
_TOP, _LEADING = 70.0, 16.0
Pair = tuple[str, str]
PaperLayout = Callable[[Facts, random.Random], PdfPage]


class _Sheet:
    """Words line by line, from the top of a page."""

    def __init__(self) -> None:
        self._y = _TOP
        self._words: list[Words] = []

    def line(self, *cells: tuple[float, str], size: float = 10.0) -> None:
        """Set the cells of one line, each starting at its x."""
        self._words += [Words(x=x, y=self._y, text=text, size=size) for x, text in cells if text]
        self._y += _LEADING * size / 10.0

    def lines(self, texts: Iterable[str], *, x: float) -> None:
        """Set texts one below the other."""
        for text in texts:
            self.line((x, text))

    def gap(self) -> None:
        self._y += _LEADING

    def pairs(self, pairs: Iterable[Pair], *, left: float, right: float) -> None:
        """Set labels and values in two columns."""
        for label, value in pairs:
            self.line((left, label), (right, value))

    def page(self) -> PdfPage:
        return PdfPage(words=tuple(self._words))


def _reference_pairs(facts: Facts, rng: random.Random) -> list[Pair]:
    due = "Valid until" if facts.kind is Kind.QUOTATION else rng.choice(("Due", "Pay by"))
    pairs = {
        Extra.CUSTOMER: (rng.choice(("To", "Customer", "Bill to")), facts.customer),
        Extra.DUE_DATE: (due, facts.date_style(facts.due_day)),
        Extra.ORDER: (rng.choice(("Order", "Your order")), facts.order),
    }
    return [pair for extra, pair in pairs.items() if extra in facts.extras]


def _number_pair(facts: Facts, rng: random.Random) -> list[Pair]:
    return [] if facts.number is None else [(rng.choice(("No", "Number", "Ref")), facts.number)]


def _date_pair(facts: Facts, rng: random.Random) -> Pair:
    return rng.choice(("Date", "Issued")), shown_date(facts)


def _contacts(facts: Facts) -> list[str]:
    lines = {Extra.ADDRESS: facts.address, Extra.PHONE: f"Tel {facts.phone}"}
    return [line for extra, line in lines.items() if extra in facts.extras]


def _item_rows(facts: Facts) -> list[Sequence[str]]:
    if facts.kind is Kind.DELIVERY_NOTE:
        return [(str(item.quantity), item.name, "") for item in facts.items]
    return [(str(item.quantity), item.name, money(item.price_cents)) for item in facts.items]


def _sum_pairs(facts: Facts, rng: random.Random) -> list[Pair]:
    if facts.kind is Kind.DELIVERY_NOTE:
        return [(rng.choice(("Pieces", "Total pieces", "Quantity")), str(facts.num_pieces))]
    tax = [("Net", money(facts.net_cents)), (f"VAT {facts.tax_percent}%", money(facts.tax_cents))]
    total = [(rng.choice(("Total", "TOTAL", "Amount", "Sum")), shown_total(facts, rng))]
    return (tax if Extra.TAX in facts.extras else []) + total


def _items(sheet: _Sheet, facts: Facts, rng: random.Random, *, has_head: bool) -> None:
    if has_head:
        sheet.line((LEFT, "Qty"), (120.0, "Item"), (RIGHT, "" if facts.kind is Kind.DELIVERY_NOTE else "Price"))
    for quantity, name, price in _item_rows(facts):
        sheet.line((LEFT, quantity), (120.0, name), (RIGHT, price))
    sheet.gap()
    sheet.pairs(_sum_pairs(facts, rng), left=MIDDLE, right=RIGHT)


def _heading_left(facts: Facts, rng: random.Random) -> PdfPage:
    """Heading and number on one line, the seller below, references in a column."""
    sheet = _Sheet()
    sheet.line((LEFT, facts.heading), (RIGHT, facts.number or ""), size=15)
    sheet.gap()
    sheet.pairs([(rng.choice(("From", "Seller", "Vendor")), facts.vendor)], left=LEFT, right=160.0)
    sheet.pairs([_date_pair(facts, rng), *_reference_pairs(facts, rng)], left=LEFT, right=160.0)
    sheet.lines(_contacts(facts), x=LEFT)
    sheet.gap()
    _items(sheet, facts, rng, has_head=True)
    return sheet.page()


def _seller_above(facts: Facts, rng: random.Random) -> PdfPage:
    """A letterhead on the left, references on the right of the page."""
    sheet = _Sheet()
    sheet.line((LEFT, facts.vendor), size=14)
    sheet.lines(_contacts(facts), x=LEFT)
    sheet.gap()
    sheet.line((LEFT, facts.heading), size=13)
    references = [*_number_pair(facts, rng), _date_pair(facts, rng), *_reference_pairs(facts, rng)]
    rng.shuffle(references)
    sheet.pairs(references, left=MIDDLE, right=RIGHT)
    sheet.gap()
    _items(sheet, facts, rng, has_head=bool(rng.getrandbits(1)))
    return sheet.page()


def _two_sides(facts: Facts, rng: random.Random) -> PdfPage:
    """Seller on the left, heading, number and date on the right of the same lines."""
    sheet = _Sheet()
    rights = [facts.heading, facts.number or "", shown_date(facts)]
    lefts = [facts.vendor, *_contacts(facts)]
    for index in range(max(len(lefts), len(rights))):
        left = lefts[index] if index < len(lefts) else ""
        right = rights[index] if index < len(rights) else ""
        sheet.line((LEFT, left), (380.0, right))
    sheet.gap()
    sheet.pairs(_reference_pairs(facts, rng), left=LEFT, right=160.0)
    sheet.gap()
    _items(sheet, facts, rng, has_head=True)
    return sheet.page()


def _head_of_cells(facts: Facts, rng: random.Random) -> PdfPage:
    """Labels in one line, their values in the next."""
    sheet = _Sheet()
    sheet.line((LEFT, facts.heading), size=15)
    sheet.line((LEFT, rng.choice(("From", "Seller", "Vendor"))), (220.0, facts.vendor))
    sheet.gap()
    cells = [*_number_pair(facts, rng), _date_pair(facts, rng), *_reference_pairs(facts, rng)][:4]
    places = [LEFT + 125.0 * index for index in range(len(cells))]
    for row in (0, 1):
        sheet.line(*((x, cell[row]) for x, cell in zip(places, cells, strict=True)))
    sheet.gap()
    _items(sheet, facts, rng, has_head=False)
    return sheet.page()


def _narrow(facts: Facts, rng: random.Random) -> PdfPage:
    """A till's roll: prices at its right edge, the date at the end."""
    sheet = _Sheet()
    sheet.line((LEFT, f"** {facts.vendor} **"))
    sheet.lines(_contacts(facts), x=LEFT)
    sheet.line((LEFT, facts.heading))
    for quantity, name, price in _item_rows(facts):
        sheet.line((LEFT, f"{quantity} x {name}"), (220.0, price))
    sheet.pairs(_sum_pairs(facts, rng), left=LEFT, right=220.0)
    sheet.pairs([*_number_pair(facts, rng), _date_pair(facts, rng)], left=LEFT, right=220.0)
    sheet.pairs(_reference_pairs(facts, rng), left=LEFT, right=220.0)
    return sheet.page()


def _seller_below(facts: Facts, rng: random.Random) -> PdfPage:
    """The seller at the foot of the page."""
    sheet = _Sheet()
    sheet.line((LEFT, facts.heading), (MIDDLE, shown_date(facts)), size=12)
    sheet.pairs([*_number_pair(facts, rng), *_reference_pairs(facts, rng)], left=LEFT, right=160.0)
    sheet.gap()
    _items(sheet, facts, rng, has_head=True)
    sheet.gap()
    sheet.line((LEFT, facts.vendor), (MIDDLE, " ".join(_contacts(facts))))
    return sheet.page()


def _shuffled(facts: Facts, rng: random.Random) -> PdfPage:
    """Blocks in random order: so a model learns the meaning of words, and not their place."""
    sheet = _Sheet()
    left, right = rng.choice((LEFT, 90.0, 130.0)), rng.choice((MIDDLE, 340.0, 400.0))
    references = [_date_pair(facts, rng), *_number_pair(facts, rng), *_reference_pairs(facts, rng)]
    seller: Pair = (rng.choice(("From", "Seller", "Vendor")), facts.vendor)
    is_named = bool(rng.getrandbits(1))
    if is_named:
        references.append(seller)
    rng.shuffle(references)
    blocks: list[Callable[[], None]] = [
        lambda: sheet.line((left, facts.heading), (right, rng.choice(("", facts.order, "Page 1"))), size=12),
        lambda: sheet.pairs(references, left=left, right=right),
        lambda: _rows(sheet, facts, left=left, right=right, rng=rng),
        lambda: sheet.pairs(_sum_pairs(facts, rng), left=rng.choice((left, MIDDLE)), right=RIGHT),
        lambda: sheet.lines(_contacts(facts), x=left),
    ]
    if not is_named:
        blocks.append(lambda: sheet.line((left, facts.vendor), (right, rng.choice(("", facts.phone)))))
    rng.shuffle(blocks)
    for write in blocks:
        write()
        if rng.getrandbits(1):
            sheet.gap()
    return sheet.page()


def _rows(sheet: _Sheet, facts: Facts, *, left: float, right: float, rng: random.Random) -> None:
    is_joined = bool(rng.getrandbits(1))
    for quantity, name, price in _item_rows(facts):
        if is_joined:
            sheet.line((left, f"{quantity} x {name}"), (right, price))
        else:
            sheet.line((left, quantity), (left + 50.0, name), (right, price))


def _numbered_right(facts: Facts, rng: random.Random) -> PdfPage:
    """Held out: heading and seller on one line, the sum above the items."""
    sheet = _Sheet()
    sheet.line((LEFT, facts.vendor), (380.0, facts.heading), size=12)
    sheet.gap()
    sheet.pairs([_date_pair(facts, rng), *_number_pair(facts, rng)], left=MIDDLE, right=RIGHT)
    sheet.lines(_contacts(facts), x=LEFT)
    sheet.pairs(_reference_pairs(facts, rng), left=LEFT, right=160.0)
    sheet.gap()
    sheet.pairs(_sum_pairs(facts, rng), left=LEFT, right=200.0)
    for quantity, name, price in _item_rows(facts):
        sheet.line((LEFT, quantity), (120.0, name), (RIGHT, price))
    return sheet.page()


def _form(facts: Facts, rng: random.Random) -> PdfPage:
    """Held out: a form, every label on the left and every value far from it, in any order."""
    sheet = _Sheet()
    sheet.line((LEFT, facts.heading), size=18)
    sheet.gap()
    pairs = [
        (rng.choice(("From", "Seller", "Vendor")), facts.vendor),
        _date_pair(facts, rng),
        *_number_pair(facts, rng),
        *_reference_pairs(facts, rng),
    ]
    rng.shuffle(pairs)
    sheet.pairs(pairs, left=LEFT, right=MIDDLE)
    sheet.gap()
    for quantity, name, price in _item_rows(facts):
        sheet.line((LEFT, f"{quantity} x {name}"), (MIDDLE, price))
    sheet.pairs(_sum_pairs(facts, rng), left=LEFT, right=MIDDLE)
    sheet.lines(_contacts(facts), x=LEFT)
    return sheet.page()


TRAINED: tuple[PaperLayout, ...] = (
    _heading_left,
    _seller_above,
    _two_sides,
    _head_of_cells,
    _narrow,
    _seller_below,
    *(_shuffled,) * 6,
)
HELD_OUT: tuple[PaperLayout, ...] = (_numbered_right, _form)
