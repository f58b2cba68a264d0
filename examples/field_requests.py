"""Generate requests for fields of documents: the text of a page, a mail or plain text, and the true answer.

Each page is written as a PDF and read back, so that a model is trained on what prompts show. The same split, seed and
index always give the same request.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from examples.document_layouts import LAYOUTS, Facts, Kind, money, shown_date
from examples.documents import Split, draw_facts
from examples.harms import Harm, Harms, draw_harms, harm_lines, harm_page, harmed_gold
from examples.paper_layouts import TRAINED
from features.documents.extraction.documents.layout import layout
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from lab.extraction.pdf_writer import write_pdf

_PAPER_SHARE, _MAIL_SHARE = 0.6, 0.2
_UNNUMBERED_SHARE = 0.15
"""Share of documents without a number, but with other numbers: so the model learns to answer null."""
_MAILBOXES = (
    *("office@example.org", "accounts@example.com", "billing@example.net", "anna.meyer@example.com"),
    *("post@example.org", "orders@example.net", "John Doe <john@example.org>", "Purchasing <buy@example.com>"),
)
_FIRST_MAIL = datetime(2021, 1, 1, tzinfo=UTC)

SCHEMA_PATH = Path(__file__).parent / "extract" / "invoice.schema.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRequest:
    """A document's text as a prompt shows it, and the value and quote of each field; None for a field without one."""

    text: str
    fields: dict[str, tuple[Any, str] | None]
    facts: Facts
    harms: Harms = field(default_factory=dict)


def draw_request(rng: random.Random, *, harm_share: float = 0.0) -> FieldRequest:
    """Draw one document: on paper, in a mail, or as plain text; `harm_share` of its values are harmed.

    If two values contradict each other, either is the answer, at random: so a model learns to be unsure.
    """
    facts, kind = draw_facts(rng), rng.random()
    if rng.random() < _UNNUMBERED_SHARE:
        facts = replace(facts, number=None)
    harms = draw_harms(facts, rng, share=harm_share) if harm_share else {}
    if kind < _PAPER_SHARE:
        page = rng.choice(TRAINED)(facts, rng)
        text = shown(write_pdf([harm_page(page, facts, harms, rng) if harms else page]), "document.pdf")
    elif kind < _PAPER_SHARE + _MAIL_SHARE:
        text = shown(mail_of(facts, rng, harms=harms), "document.eml")
    else:
        text = "\n".join(harm_lines(rng.choice(LAYOUTS)(facts, rng), facts, harms, rng))
    whole = gold(facts, text)
    fields = harmed_gold(whole, text, facts, harms)
    for name, each in harms.items():
        if each.harm is Harm.CONTRADICTED:
            fields[name] = rng.choice((whole[name], (each.other, each.other_quote)))
    _quote_one_sum(fields, harms)
    return FieldRequest(text=text, fields=fields, facts=facts, harms=harms)


def _quote_one_sum(fields: dict[str, tuple[Any, str] | None], harms: Harms) -> None:
    """Quote a sum and its currency from the same words where one of them was chosen from two values."""
    for name, other in (("total", "currency"), ("currency", "total")):
        chosen, beside = fields[name], fields[other]
        if name in harms and chosen is not None and beside is not None and other not in harms:
            fields[other] = beside[0], chosen[1]


def shown(content: bytes, name: str) -> str:
    """Return the text of a file as a prompt shows it."""
    return layout(parse(content, name, Limits())).text


def mail_of(facts: Facts, rng: random.Random, *, harms: Harms | None = None) -> bytes:
    """Return a mail with the document's text as its body, with a date and sender other than the document's."""
    mail = EmailMessage()
    mail["Subject"] = rng.choice((facts.heading, "Your documents", f"Documents {rng.randint(100, 999)}"))
    sender, receiver = rng.sample(_MAILBOXES, 2)
    mail["From"] = sender
    mail["To"] = receiver
    mail["Date"] = format_datetime(_FIRST_MAIL + timedelta(minutes=rng.randrange(7 * 365 * 24 * 60)))
    lines = harm_lines(rng.choice(LAYOUTS)(facts, rng), facts, harms or {}, rng)
    mail.set_content("\n".join(lines) + "\n")
    return mail.as_bytes()


def make_request(split: Split, seed: int, index: int, *, harm_share: float = 0.0) -> FieldRequest:
    """Return one request of a stream."""
    return draw_request(random.Random(f"fields/{split}/{seed}/{index}"), harm_share=harm_share)


def gold(facts: Facts, text: str) -> dict[str, tuple[Any, str] | None]:
    """Return the value and the quote of each field of a document."""
    has_sum = facts.kind is not Kind.DELIVERY_NOTE
    total = _shown_total(facts, text) if has_sum else ""
    return {
        "type": (facts.kind.value, facts.heading),
        "vendor": (facts.vendor, facts.vendor),
        "number": None if facts.number is None else (facts.number, facts.number),
        "date": (facts.day.isoformat(), shown_date(facts)),
        "total": (facts.total_cents / 100, total) if has_sum else None,
        "currency": (facts.currency, total) if has_sum else None,
        "pieces": None if has_sum else (facts.num_pieces, str(facts.num_pieces)),
    }


def answer_text(fields: dict[str, tuple[Any, str] | None]) -> str:
    """Return the answer as compact JSON; amounts have two decimals."""
    parts = []
    for name, stated in fields.items():
        text = "null" if stated is None else f'{{"value":{_json(stated[0])},"quote":{_json(stated[1])}}}'
        parts.append(f'"{name}":{text}')
    return "{" + ",".join(parts) + "}"


def _json(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _shown_total(facts: Facts, text: str) -> str:
    total = money(facts.total_cents)
    for words in (f"{facts.currency} {total}", f"{total} {facts.currency}", f"€{total}", f"${total}", f"£{total}"):
        if words in text:
            return words
    return f"Fr. {total}"
