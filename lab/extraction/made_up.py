"""Measure what becomes of made-up answers: invented quotes, names with a changed word, values that stand elsewhere.

python -m lab.extraction made_up [--receipts 200] [--seed 0]

Receipts of a shop, an inn or a workshop, with answers as a model might write them; runs no model. True answers are
measured beside the made-up ones: what marks these must not mark those.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.arguments import natural
from features.documents.extraction.course.document import record_of
from features.documents.extraction.course.job import ExtractJob, plan
from features.documents.extraction.course.line_results import Answers, LineResult
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse

_SCHEMA = {
    "type": "object",
    "properties": {
        "vendor": {"type": "string"},
        "total": {"type": "number", "x-tokenmill": {"metric": "money"}},
        "state": {"type": "string", "description": "the state whose law governs"},
    },
}
_NAMES = "Harbour Lindgren Castell Brook Maple Orchard Sterling Fenwick Alder Quarry Beacon Thornton".split()  # noqa: SIM905
_TRADES = "Trading Hotels Supplies Motors Catering Textiles Printing Gardens Logistics Bakery".split()  # noqa: SIM905
_FORMS = ["Ltd", "GmbH", "Sdn Bhd", "Inc", "LLC", "& Sons"]
_STATES = {"Delaware": "declare", "Nevada": "never", "Texas": "taxes", "Oregon": "origin", "Virginia": "virgin"}
"""States, and words like them that the terms of a receipt may have."""

Answer = Any
"""What a model answers to a field: a value, or with quotes an object of quote and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A receipt, and what is true of it."""

    text: str
    vendor: str
    total: str
    elsewhere: str
    """Another amount or number on it."""
    like: str
    """A word like the name of the state that it does not name."""
    state: str

    @property
    def total_line(self) -> str:
        return next(line for line in self.text.splitlines() if line.startswith("Grand total"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Answers to one field, and what is counted about its evidence."""

    name: str
    field: str
    answer: Callable[[Receipt, random.Random], Answer]
    counted: str
    is_counted: Callable[[Receipt, Mapping[str, Any]], bool]
    goal: str
    quotes: bool = True


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each kind of answer."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction made_up", description=__doc__)
    parser.add_argument("--receipts", type=natural, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    receipts = [receipt(random.Random(f"{arguments.seed} {number}")) for number in range(arguments.receipts)]
    print(f"{'answer':<50}{'counted':<26}{'share':>8}   goal")
    for case in CASES:
        rng = random.Random(f"{arguments.seed} {case.name}")
        share = sum(case.is_counted(one, evidence_of(one, case, rng)) for one in receipts) / len(receipts)
        print(f"{case.name:<50}{case.counted:<26}{share:>8.1%}   {case.goal}")
    return 0


def evidence_of(one: Receipt, case: Case, rng: random.Random) -> Mapping[str, Any]:
    """Return the evidence of a case's field for its answer."""
    job, document = _job(quotes=case.quotes), parse(one.text.encode(), "receipt.txt", Limits())
    said = json.dumps({"vendor": None, "total": None, "state": None, case.field: case.answer(one, rng)})
    answers = Answers(first=[LineResult(text=said)])
    record = record_of(job, job.showing(document), answers, name="receipt.txt", sha256="", usage={})
    return next(each for each in record["evidence"] if each["path"] == case.field)


@cache
def _job(*, quotes: bool) -> ExtractJob:
    return plan(json.dumps(_SCHEMA).encode(), quotes=quotes, params={}, max_fields=10)


def receipt(rng: random.Random) -> Receipt:
    """Return a receipt: its total is the cash that was given, and often the amount of its only item."""
    name, town = rng.sample(_NAMES, 2)
    vendor = f"{name} {rng.choice(_TRADES)} {rng.choice(_FORMS)}"
    room, total = rng.randint(100, 899), rng.randint(900, 99_000) / 100
    state, like = rng.choice(list(_STATES.items()))
    amount = f"{total:,.2f}"
    items = [f"1 x {rng.choice(_TRADES).lower()}    {amount}"] if rng.random() < 0.5 else _items(total, rng)
    head = [vendor, f"{rng.randint(1, 99)} {town} Road", f"Room {room}", f"Receipt {rng.randint(10_000, 99_999)}", ""]
    sums = [f"Subtotal    {amount}", f"Grand total EUR {amount}", f"Cash        {amount}", "Change      0.00"]
    if rng.random() < 0.5:
        sums = [sums[2], sums[0], sums[1], sums[3]]
    terms = f"Guests {like} the value of what they leave with us."
    text = "\n".join([*head, *items, *sums, "", terms, "Thank you"])
    return Receipt(text=text, vendor=vendor, total=amount, elsewhere=f"{room}.00", like=like, state=state)


def _items(total: float, rng: random.Random) -> list[str]:
    first = round(total * rng.uniform(0.2, 0.8), 2)
    return [f"1 x {rng.choice(_TRADES).lower()}    {part:,.2f}" for part in (first, round(total - first, 2))]


def _with_other_word(name: str, rng: random.Random) -> str:
    words = name.split()
    number = rng.randrange(2)
    words[number] = rng.choice([each for each in (_NAMES, _TRADES)[number] if each != words[number]])
    return " ".join(words)


def _with_other_letter(quote: str, rng: random.Random) -> str:
    index = rng.choice([place for place, sign in enumerate(quote) if sign.isalpha()])
    return (
        quote[:index] + rng.choice("abcdefghijklmnopqrstuvwxyz".replace(quote[index].lower(), "")) + quote[index + 1 :]
    )


def _quoted(value: object, quote: str) -> Answer:
    return {"quote": quote, "value": value}


def _quoting_itself(value: str) -> Answer:
    return _quoted(value, value)


def _unmarked(_: Receipt, evidence: Mapping[str, Any]) -> bool:
    return evidence["value"] is not None and evidence["level"] == "high" and not evidence["review"]


def _found(_: Receipt, evidence: Mapping[str, Any]) -> bool:
    return evidence["value"] is not None and bool(evidence["spans"])


def _at_total(one: Receipt, evidence: Mapping[str, Any]) -> bool:
    start = one.text.index(one.total_line)
    return any(start <= span["start"] < start + len(one.total_line) for span in evidence["spans"])


def _amount(text: str) -> float:
    return float(text.replace(",", ""))


_NOT_MARKED, _IS_FOUND, _NEAR = "high, no review", "has a place", "placed at Grand total"
CASES = (
    Case(
        name="number of the room as total, invented quote",
        field="total",
        answer=lambda one, _: _quoted(_amount(one.elsewhere), f"Grand total EUR {one.elsewhere}"),
        counted=_NOT_MARKED,
        is_counted=_unmarked,
        goal="0",
    ),
    Case(
        name="name with another word, its true quote",
        field="vendor",
        answer=lambda one, rng: _quoted(_with_other_word(one.vendor, rng), one.vendor),
        counted=_NOT_MARKED,
        is_counted=_unmarked,
        goal="0",
    ),
    Case(
        name="name with another word, in its quote, too",
        field="vendor",
        answer=lambda one, rng: _quoting_itself(_with_other_word(one.vendor, rng)),
        counted=_IS_FOUND,
        is_counted=_found,
        goal="≤ 5 %",
    ),
    Case(
        name="name with another word, no quote",
        field="vendor",
        answer=lambda one, rng: _with_other_word(one.vendor, rng),
        counted=_IS_FOUND,
        is_counted=_found,
        goal="≤ 5 %",
        quotes=False,
    ),
    Case(
        name="state that is not named, but a word like it",
        field="state",
        answer=lambda one, _: one.state,
        counted=_IS_FOUND,
        is_counted=_found,
        goal="≤ 0.5 %",
        quotes=False,
    ),
    Case(
        name="true total that stands elsewhere, too, no quote",
        field="total",
        answer=lambda one, _: _amount(one.total),
        counted=_NEAR,
        is_counted=_at_total,
        goal="≥ 90 %",
        quotes=False,
    ),
    Case(
        name="true total, the amount alone as quote",
        field="total",
        answer=lambda one, _: _quoted(_amount(one.total), one.total),
        counted=_NEAR,
        is_counted=_at_total,
        goal="≥ 90 %",
    ),
    Case(
        name="true total, true quote",
        field="total",
        answer=lambda one, _: _quoted(_amount(one.total), one.total_line),
        counted=_NOT_MARKED,
        is_counted=_unmarked,
        goal="as before",
    ),
    Case(
        name="true name, true quote",
        field="vendor",
        answer=lambda one, _: _quoted(one.vendor, one.vendor),
        counted=_NOT_MARKED,
        is_counted=_unmarked,
        goal="as before",
    ),
    Case(
        name="true name, no quote",
        field="vendor",
        answer=lambda one, _: one.vendor,
        counted=_IS_FOUND,
        is_counted=_found,
        goal="as before",
        quotes=False,
    ),
    Case(
        name="true name, a wrong letter in it and in its quote",
        field="vendor",
        answer=lambda one, rng: _quoting_itself(_with_other_letter(one.vendor, rng)),
        counted=_IS_FOUND,
        is_counted=_found,
        goal="as before",
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
