"""Generate pages from a seed: prose, two columns, and invoices with a table of line items.

Uses the page's size and one font's mean width; the words mean nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from lab.extraction.pdf_writer import PdfPage, Words, write_pdf

_WORDS = (
    *("the", "of", "and", "to", "in", "is", "that", "for", "as", "was", "with", "be", "by", "on", "not", "he", "his"),
    *("but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one", "were", "all", "their"),
    *("there", "been", "many", "some", "delivery", "contract", "payment", "invoice", "agreement", "supplier"),
    *("customer", "quarter", "report"),
)
_LEADING, _SIZE, _MARGIN = 13.0, 10.0, 56.0
_MEAN_WIDTH = 5.0  # of a letter at 10 points


def make_pdf(num_pages: int, seed: int) -> bytes:
    """Return a PDF of `num_pages` pages, a third of each kind."""
    draw = random.Random(seed)
    kinds = (_prose, _columns, _invoice)
    return write_pdf([PdfPage(words=tuple(kinds[number % 3](draw))) for number in range(num_pages)])


def make_pages(num_pages: int, *, seed: int) -> list[PdfPage]:
    """Return pages of prose and of two columns, alternating."""
    draw = random.Random(seed)
    return [PdfPage(words=tuple((_prose, _columns)[number % 2](draw))) for number in range(num_pages)]


def _prose(draw: random.Random) -> Iterator[Words]:
    yield from _paragraph(draw, _MARGIN, 480.0)


def _columns(draw: random.Random) -> Iterator[Words]:
    yield from _paragraph(draw, _MARGIN, 225.0)
    yield from _paragraph(draw, 315.0, 225.0)


def _invoice(draw: random.Random) -> Iterator[Words]:
    yield Words(x=_MARGIN, y=70, text=f"Invoice {draw.randrange(10**6):06}", size=16)
    yield Words(x=400, y=70, text=f"2026-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}")
    total = 0
    for row in range(40):
        y, amount = 120 + row * _LEADING, draw.randrange(100, 10**6)
        total += amount
        yield Words(x=_MARGIN, y=y, text=str(row + 1))
        yield Words(x=90, y=y, text=_line(draw, 220.0))
        yield Words(x=370, y=y, text=str(draw.randrange(1, 100)))
        yield Words(x=470, y=y, text=f"{amount / 100:,.2f}")
    yield Words(x=370, y=120 + 41 * _LEADING, text="Total")
    yield Words(x=470, y=120 + 41 * _LEADING, text=f"{total / 100:,.2f}")


def _paragraph(draw: random.Random, x: float, width: float) -> Iterator[Words]:
    y = 70.0
    while y < 780:
        yield Words(x=x, y=y, text=_line(draw, width))
        y += _LEADING


def _line(draw: random.Random, width: float) -> str:
    words: list[str] = []
    while sum(len(word) + 1 for word in words) < width / _MEAN_WIDTH - 8:
        words.append(draw.choice(_WORDS))
    return " ".join(words)
