"""Usual layouts in Helvetica: the family that reading is developed with."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from lab.extraction.page_layouts.typesetting import Frame, MadePage, Prose, Type, flow, set_words, width_of
from lab.extraction.pdf_writer import PdfPage, Words

Make = Callable[[random.Random], MadePage]

_VOCABULARY = (
    *("the", "of", "and", "to", "in", "is", "that", "for", "as", "was", "with", "be", "by", "on", "not", "his"),
    *("but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one", "were", "all", "their"),
    *("delivery", "contract", "payment", "invoice", "agreement", "supplier", "customer", "quarter", "report"),
    *("liability", "termination", "confidential", "schedule", "warehouse", "insurance", "notwithstanding"),
)
_BODY = Type()
_LEFT, _TOP, _WIDTH, _LINES = 56.0, 90.0, 483.0, 50
_LABELS = ("Name", "Street", "City", "Country", "Date of birth", "Telephone", "Account", "Bank", "Reference", "Amount")
_GOODS = ("Paper", "Pens", "Ink, black", "Folders, blue", "Envelopes", "Staples", "Desk lamp", "Chair", "Cable")


def _prose(draw: random.Random) -> Prose:
    return Prose(draw, _VOCABULARY)


def _columns(draw: random.Random, count: int, *, y: float = _TOP, num_lines: int = _LINES) -> list[Frame]:
    gutter = draw.uniform(18.0, 30.0)
    width = (_WIDTH - gutter * (count - 1)) / count
    return [
        Frame(x=_LEFT + number * (width + gutter), y=y, width=width, num_lines=num_lines) for number in range(count)
    ]


def _made(name: str, words: list[Words], text: str, prose: Prose) -> MadePage:
    return MadePage(layout=name, pages=(PdfPage(words=tuple(words)),), text=text, sentences=tuple(prose.sentences))


def in_columns(count: int, style: Type = _BODY) -> Make:
    """Return a maker of pages with this many columns of prose."""

    def make(draw: random.Random) -> MadePage:
        prose = _prose(draw)
        words, text = flow(prose, _columns(draw, count), style)
        divided = " with divided words" if style.is_divided else ""
        return _made(f"{count} columns{divided}" if count > 1 else "1 column", words, text, prose)

    return make


def under_headings(draw: random.Random) -> MadePage:
    """Return two columns below a title, and two below a heading across the page."""
    prose, y = _prose(draw), 80.0
    words: list[Words] = []
    parts: list[str] = []
    for _ in range(2):
        heading = prose.heading(6)
        middle = _LEFT + (_WIDTH - width_of(heading, _BODY.font, 15)) / 2
        words.append(Words(x=middle, y=y, text=heading, size=15))
        placed, text = flow(prose, _columns(draw, 2, y=y + 26, num_lines=22), _BODY)
        words, parts, y = words + placed, [*parts, heading, text], y + 26 + 22 * 13 + 24
    return _made("2 columns, headings across", words, " ".join(parts), prose)


def with_sidebar(draw: random.Random) -> MadePage:
    """Return prose with a narrow column of smaller type beside it, drawn last."""
    prose = _prose(draw)
    body, text = flow(prose, [Frame(x=_LEFT, y=_TOP, width=340, num_lines=_LINES)], _BODY)
    small = Type(size=8.5, leading=11)
    num_lines = draw.randint(12, 30)
    side, note = flow(prose, [Frame(x=_LEFT + 365, y=_TOP + 4, width=118, num_lines=num_lines)], small)
    return _made("sidebar", body + side, f"{text} {note}", prose)


def form(draw: random.Random) -> MadePage:
    """Return a form whose labels are drawn before its values."""
    prose, rows = _prose(draw), list(_LABELS)
    draw.shuffle(rows)
    values = [f"{prose.heading(draw.randint(1, 3))} {draw.randrange(1000)}" for _ in rows]
    labels = [Words(x=_LEFT, y=_TOP + 24 * row, text=f"{label}:") for row, label in enumerate(rows)]
    filled = [Words(x=_LEFT + 150, y=_TOP + 24 * row, text=value) for row, value in enumerate(values)]
    lines = [f"{label}: {value}" for label, value in zip(rows, values, strict=True)]
    return MadePage(
        layout="form, labels drawn first",
        pages=(PdfPage(words=(*labels, *filled)),),
        text=" ".join(lines),
        sentences=tuple(lines),
    )


def shuffled(count: int) -> Make:
    """Return a maker of columns whose words are drawn in any order."""

    def make(draw: random.Random) -> MadePage:
        made = in_columns(count)(draw)
        words = [each for line in made.pages[0].words for each in set_words(line.text, line.x, line.y, _BODY)]
        draw.shuffle(words)
        return replace(made, layout=f"{made.layout}, words in any order", pages=(PdfPage(words=tuple(words)),))

    return make


def line_by_line(draw: random.Random) -> MadePage:
    """Return two columns that are drawn line by line across both."""
    made = in_columns(2)(draw)
    words = sorted(made.pages[0].words, key=lambda line: (line.y, line.x))
    return replace(made, layout="2 columns, drawn across", pages=(PdfPage(words=tuple(words)),))


def turned_page(count: int) -> Make:
    """Return a maker of pages that are displayed turned, as after a wrong click in a viewer."""

    def make(draw: random.Random) -> MadePage:
        made, rotation = in_columns(count)(draw), draw.choice((90, 180, 270))
        page = replace(made.pages[0], rotation=rotation)
        return replace(made, layout=f"{made.layout}, page turned", pages=(page,))

    return make


def turned_text(count: int) -> Make:
    """Return a maker of pages whose text is turned, as from a sheet that lay wrong in a printer."""

    def make(draw: random.Random) -> MadePage:
        made, turn = in_columns(count)(draw), draw.choice((90, 180, 270))
        return replace(made, layout=f"{made.layout}, text turned", pages=(turned(made.pages[0], turn),))

    return make


def turned(page: PdfPage, turn: int) -> PdfPage:
    """Return a page whose content is turned to the left, with its sides exchanged if need be."""
    places = {
        90: lambda x, y: (y, page.width - x),
        180: lambda x, y: (page.width - x, page.height - y),
        270: lambda x, y: (page.height - y, x),
    }
    words = []
    for each in page.words:
        x, y = places[turn](each.x, each.y)
        words.append(replace(each, x=x, y=y, turn=turn))
    width, height = (page.width, page.height) if turn == 180 else (page.height, page.width)
    return replace(page, words=tuple(words), width=width, height=height)


def with_footnotes(draw: random.Random) -> MadePage:
    """Return two columns with a footnote below each; the sentence at the end of the first goes on in the second."""
    prose = _prose(draw)
    frames = _columns(draw, 2, num_lines=44)
    words, text = flow(prose, frames, _BODY)
    small = Type(size=7.5, leading=9.5)
    notes: list[str] = []
    for number, frame in enumerate(frames, start=1):
        below = replace(frame, y=frame.y + 44 * 13 + 10, num_lines=3)
        placed, note = flow(prose, [below], small)
        first = placed[0]
        words += [replace(first, text=f"{number} {first.text}"), *placed[1:]]
        notes.append(f"{number} {note}")
    return _made("2 columns, footnotes", words, " ".join([text, *notes]), prose)


def with_headers(draw: random.Random) -> MadePage:
    """Return two columns between a running header of two parts and a page number."""
    prose = _prose(draw)
    title, number = prose.heading(4), str(draw.randrange(2, 400))
    words, text = flow(prose, _columns(draw, 2), _BODY)
    right = _LEFT + _WIDTH - width_of(f"Volume {number}", _BODY.font, 9)
    head = [Words(x=_LEFT, y=60, text=title, size=9), Words(x=right, y=60, text=f"Volume {number}", size=9)]
    foot = Words(x=_LEFT + _WIDTH / 2 - 5, y=790, text=number, size=9)
    whole = f"{title} Volume {number} {text} {number}"
    return _made("2 columns, header and page number", [*head, *words, foot], whole, prose)


def table(draw: random.Random) -> MadePage:
    """Return a table of goods below a paragraph and above another, drawn row by row or column by column."""
    prose = _prose(draw)
    above, before = flow(prose, [Frame(x=_LEFT, y=_TOP, width=_WIDTH, num_lines=4)], _BODY)
    rows = [("Article", "Pieces", "Price", "Amount")]
    for _ in range(draw.randint(4, 14)):
        pieces, price = draw.randrange(1, 90), draw.randrange(100, 9000)
        goods = f"{draw.choice(_GOODS)} {draw.randrange(100)}"
        rows.append((goods, str(pieces), f"{price / 100:.2f}", f"{pieces * price / 100:,.2f}"))
    rights = (None, _LEFT + 290, _LEFT + 380, _LEFT + 475)
    placed: list[tuple[int, Words]] = []
    for row, texts in enumerate(rows):
        for column, (text, right) in enumerate(zip(texts, rights, strict=True)):
            x = _LEFT if right is None else right - width_of(text, _BODY.font, _BODY.size)
            placed.append((column, Words(x=x, y=170 + 16 * row, text=text)))
    if draw.random() < 0.5:
        placed.sort(key=lambda each: each[0])
    below = Frame(x=_LEFT, y=170 + 16 * len(rows) + 20, width=_WIDTH, num_lines=6)
    end, after = flow(prose, [below], _BODY)
    return MadePage(
        layout="table between prose",
        pages=(PdfPage(words=(*above, *(words for _, words in placed), *end)),),
        text=" ".join([before, *(" ".join(texts) for texts in rows), after]),
        sentences=tuple(prose.sentences),
        cells=tuple((row, column, text) for row, texts in enumerate(rows) for column, text in enumerate(texts)),
    )


LAYOUTS: tuple[Make, ...] = (
    *(in_columns(1), in_columns(2), in_columns(3), in_columns(2, Type(is_divided=True))),
    *(line_by_line, under_headings, with_sidebar, with_footnotes, with_headers),
    *(form, shuffled(1), shuffled(2), turned_page(1), turned_page(2), turned_text(1), turned_text(2), table),
)
