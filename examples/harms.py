"""Harm values of documents on purpose: ink over them, remove letters, or contradict them by a second value elsewhere.

Values inked over or without some letters cannot be read, and of two contradictory values none is right: a person must
review them. Works on lines of text and pages of paper.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from examples.document_layouts import SYMBOLS, Facts, Kind, money, shown_date
from examples.documents import draw_facts
from lab.extraction.pdf_writer import PdfPage, Picture, Words


class Harm(StrEnum):
    """The ways of harming a value."""

    INKED = "inked over"
    LOST = "letters lost"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmed:
    """One harmed value; if it is contradicted, also the second value."""

    harm: Harm
    label: str = ""
    other: Any = None
    other_quote: str = ""


Harms = Mapping[str, Harmed]

_HARMS = (Harm.INKED, Harm.LOST, Harm.CONTRADICTED, Harm.CONTRADICTED)
_ONLY_WHOLE = {"currency", "pieces"}
"""`E?R` can still be read, and a count has no inner letter."""
_ONLY_CONTRADICTED = {"type"}
"""It is derived, possibly from the letters of the number, too."""
_LABELS = {
    "type": ("",),
    "vendor": ("From", "Seller", "Vendor"),
    "number": ("No", "Number", "Ref"),
    "date": ("Date", "Issued"),
    "total": ("Total", "TOTAL", "Amount", "Sum"),
    "currency": ("Total", "TOTAL", "Amount", "Sum"),
    "pieces": ("Pieces", "Total pieces", "Quantity"),
}
_PIECES = re.compile(r"(?:Pieces|Total pieces|Quantity)(?:: | \| |=)(\d+)")
_INK = "\u2588" * 3
_LOST_MARK = "?"
_BLANKS = "  "
"""As wide as a digit: on paper, in place of a letter."""


def draw_harms(facts: Facts, rng: random.Random, *, share: float) -> dict[str, Harmed]:
    """Draw which of the stated values are harmed, each with the probability `share`, and how."""
    harms: dict[str, Harmed] = {}
    for name in _stated(facts):
        if rng.random() >= share or (name == "currency" and "total" in harms):
            continue
        harm = Harm.CONTRADICTED if name in _ONLY_CONTRADICTED else rng.choice(_HARMS)
        if harm is Harm.LOST and name in _ONLY_WHOLE:
            harm = Harm.INKED
        harms[name] = _contradiction(name, facts, rng) if harm is Harm.CONTRADICTED else Harmed(harm=harm)
    return harms


def _stated(facts: Facts) -> list[str]:
    amounts = ["pieces"] if facts.kind is Kind.DELIVERY_NOTE else ["total", "currency"]
    return ["type", "vendor", *(["number"] if facts.number is not None else []), "date", *amounts]


def _contradiction(name: str, facts: Facts, rng: random.Random) -> Harmed:
    """Draw a second value of a field, written in the form of the first."""
    own = _value_and_quote(name, facts, facts)
    while (other := _value_and_quote(name, draw_facts(rng), facts)) in (own, None) or other[0] == own[0]:  # type: ignore[index]
        continue
    assert other is not None
    return Harmed(harm=Harm.CONTRADICTED, label=rng.choice(_LABELS[name]), other=other[0], other_quote=other[1])


def _value_and_quote(name: str, drawn: Facts, own: Facts) -> tuple[Any, str] | None:
    """Return the value and the quote of a field of `drawn`, with the other facts from `own`."""
    if name == "type":
        return drawn.kind.value, drawn.heading
    if name == "vendor":
        return drawn.vendor, drawn.vendor
    if name == "number":
        return None if drawn.number is None else (drawn.number, drawn.number)
    if name == "date":
        return drawn.day.isoformat(), own.date_style(drawn.day)
    if name == "pieces":
        return drawn.num_pieces, str(drawn.num_pieces)
    cents = drawn.total_cents if name == "total" else own.total_cents
    currency = drawn.currency if name == "currency" else own.currency
    return (cents / 100 if name == "total" else currency), f"{currency} {money(cents)}"


def harm_lines(lines: Sequence[str], facts: Facts, harms: Harms, rng: random.Random) -> list[str]:
    """Return lines of text with values harmed."""
    harmed = list(lines)
    for name, each in harms.items():
        if each.harm is Harm.CONTRADICTED:
            second = f"{each.label}: {each.other_quote}" if each.label else each.other_quote
            harmed.insert(rng.randint(1, len(harmed)), second)
        else:
            ink = rng.choice((_INK, "", ""))
            change = _inked(ink) if each.harm is Harm.INKED else _thinned(rng, _LOST_MARK)
            harmed = [_changed(line, name, facts, change) for line in harmed]
    return harmed


def harm_page(page: PdfPage, facts: Facts, harms: Harms, rng: random.Random) -> PdfPage:
    """Return a page with values harmed; ink is a picture."""
    words, pictures = list(page.words), list(page.pictures)
    for name, each in harms.items():
        if each.harm is Harm.CONTRADICTED:
            words += _second_line(each, words, rng)
            continue
        change = _inked("") if each.harm is Harm.INKED else _thinned(rng, _BLANKS)
        changed = [_changed_words(one, name, facts, change, words) for one in words]
        pictures += [_ink_over(old, new) for old, new in zip(words, changed, strict=True) if old != new]
        words = [one for one in changed if one.text.strip()]
    return replace(page, words=tuple(words), pictures=tuple(pictures))


def harmed_gold(
    gold: Mapping[str, tuple[Any, str] | None], text: str, facts: Facts, harms: Harms
) -> dict[str, tuple[Any, str] | None]:
    """Return the value and the remaining quote of each field of a harmed document: None for harmed ones."""
    fields = {name: None if name in harms else field for name, field in gold.items()}
    if _is_unreadable("currency", harms) and fields["total"] is not None:
        fields["total"] = fields["total"][0], money(facts.total_cents)
    if _is_unreadable("total", harms) and fields["currency"] is not None:
        fields["currency"] = (
            facts.currency,
            facts.currency if facts.currency in text else SYMBOLS[facts.currency].strip(),
        )
    return fields


def _is_unreadable(name: str, harms: Harms) -> bool:
    return name in harms and harms[name].harm is not Harm.CONTRADICTED


Change = Callable[[str], str]


def _inked(ink: str) -> Change:
    return lambda _text: ink


def _thinned(rng: random.Random, mark: str) -> Change:
    """Return a function that removes one or two digits from a text, or a third of its letters if it has no digits.

    Never the first or the last, whose absence would be invisible.
    """

    def change(text: str) -> str:
        inner = range(1, len(text) - 1)
        places = [place for place in inner if text[place].isdigit()]
        count = rng.randint(1, 2)
        if not places:
            places = [place for place in inner if text[place].isalpha()]
            count = max(2, len(places) // 3)
        lost = set(rng.sample(places, min(count, len(places))))
        return "".join(mark if place in lost else sign for place, sign in enumerate(text))

    return change


def _changed(text: str, name: str, facts: Facts, change: Change) -> str:
    """Return a text with all occurrences of a field's value changed."""
    if name == "pieces":
        return _PIECES.sub(lambda match: match.group()[: match.start(1) - match.start()] + change(match.group(1)), text)
    for shown, part in _shown(name, facts):
        if shown in text:
            return text.replace(shown, shown.replace(part, change(part)))
    return text


def _shown(name: str, facts: Facts) -> Iterable[tuple[str, str]]:
    """Yield the forms in which a field may be shown, each with the part that is its value."""
    if name in ("total", "currency"):
        amount, symbol = money(facts.total_cents), SYMBOLS[facts.currency]
        for shown, sign in (
            (f"{facts.currency} {amount}", facts.currency),
            (f"{amount} {facts.currency}", facts.currency),
            (f"{symbol}{amount}", symbol.strip()),
        ):
            yield shown, amount if name == "total" else sign
        return
    value = {"vendor": facts.vendor, "number": facts.number or "", "date": shown_date(facts)}[name]
    yield value, value


def _changed_words(one: Words, name: str, facts: Facts, change: Change, page: Sequence[Words]) -> Words:
    if name != "pieces":
        return replace(one, text=_changed(one.text, name, facts, change))
    labels = [other for other in page if other.text in _LABELS["pieces"] and other.y == one.y and other.x < one.x]
    is_value = bool(labels) and one.text == str(facts.num_pieces)
    return replace(one, text=change(one.text)) if is_value else one


def _ink_over(old: Words, new: Words) -> Picture:
    """Return ink over the place where words differ; a letter of Helvetica is about half as wide as high."""
    same = next((place for place, pair in enumerate(zip(old.text, new.text, strict=False)) if pair[0] != pair[1]), 0)
    width = 0.55 * old.size * (len(old.text) if not new.text.strip() else 1)
    return Picture(
        x=old.x + 0.52 * old.size * same, y=old.y - 0.8 * old.size, width=width, height=old.size, pixels=(b"\0",)
    )


def _second_line(each: Harmed, words: Sequence[Words], rng: random.Random) -> list[Words]:
    """Return a line above all others or below them."""
    top, bottom = min(one.y for one in words), max(one.y for one in words)
    y = rng.choice((top - 18.0, bottom + 20.0, bottom + 32.0))
    left, right = rng.choice(((56.0, 160.0), (56.0, 300.0), (300.0, 440.0)))
    cells = [(left, each.label), (right if each.label else left, each.other_quote)]
    return [Words(x=x, y=y, text=text) for x, text in cells if text]
