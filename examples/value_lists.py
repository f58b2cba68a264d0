"""The list of a second reading of a generated document: every value with its kind and quote, in document order.

Values inked over or without some letters are not listed; two contradictory values are both listed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from examples.document_layouts import SYMBOLS, Facts, money
from examples.field_requests import FieldRequest
from examples.harms import Harm
from features.documents.extraction.fields.leaf import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value, and the forms in which it may occur in a document."""

    kind: Kind
    value: str
    shown: tuple[str, ...]


def list_text(request: FieldRequest, kinds: Collection[Kind]) -> str:
    """Return the list as compact JSON."""
    places = [(start, one, quote) for start, one, quote in _placed(request) if one.kind in kinds]
    values = [{"kind": one.kind.value, "value": one.value, "quote": quote} for _, one, quote in places]
    return json.dumps({"values": values}, ensure_ascii=False, separators=(",", ":"))


def _placed(request: FieldRequest) -> list[tuple[int, Value, str]]:
    placed: list[tuple[int, Value, str]] = []
    for one in _values(request):
        for quote in one.shown:
            for match in re.finditer(rf"(?<![\w.:/-]){re.escape(quote)}(?![\w:/-]|\.\d)", request.text):
                is_free = all(match.start() >= start + len(other) or match.end() <= start for start, _, other in placed)
                if is_free:
                    placed.append((match.start(), one, quote))
    return sorted(placed, key=lambda each: each[0])


def _values(request: FieldRequest) -> Iterator[Value]:
    """Yield the values that may occur in the document: amounts with their currency first, plain counts last."""
    facts = request.facts
    stated = {name: field for name, field in request.fields.items() if field is not None}
    others = {name: each for name, each in request.harms.items() if each.harm is Harm.CONTRADICTED}
    for name in ("total", "currency"):
        if name in others:
            quote = others[name].other_quote
            yield Value(kind=Kind.MONEY, value=quote.split()[-1], shown=(quote,))
    if "total" in stated or "total" in others:
        yield Value(kind=Kind.MONEY, value=money(facts.total_cents), shown=(*_sums(facts), money(facts.total_cents)))
    texts = [facts.vendor, facts.number, facts.customer, facts.order, facts.address]
    texts += [others[name].other_quote for name in ("vendor", "number") if name in others]
    for text in texts:
        if text:
            yield Value(kind=Kind.TEXT, value=text, shown=(text,))
    for day in (facts.day, facts.due_day):
        yield Value(kind=Kind.DATE, value=day.isoformat(), shown=(facts.date_style(day),))
    if "date" in others:
        yield Value(kind=Kind.DATE, value=str(others["date"].other), shown=(others["date"].other_quote,))
    for cents in (*(item.price_cents for item in facts.items), facts.net_cents, facts.tax_cents):
        yield Value(kind=Kind.MONEY, value=money(cents), shown=(money(cents),))
    yield Value(kind=Kind.NUMBER, value=str(facts.tax_percent), shown=(f"{facts.tax_percent}%",))
    counts = {facts.num_pieces, *(item.quantity for item in facts.items)}
    counts |= {int(others["pieces"].other)} if "pieces" in others else set()
    for count in sorted(counts):
        yield Value(kind=Kind.NUMBER, value=str(count), shown=(str(count),))


def _sums(facts: Facts) -> tuple[str, ...]:
    amount = money(facts.total_cents)
    return f"{facts.currency} {amount}", f"{amount} {facts.currency}", f"{SYMBOLS[facts.currency]}{amount}"
