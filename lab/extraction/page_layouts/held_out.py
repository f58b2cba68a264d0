"""Layouts in other fonts, sizes and gutters: the family that shows whether reading fits more than the usual one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from lab.extraction.page_layouts.typesetting import (
    Frame,
    MadePage,
    Prose,
    Type,
    flow,
    lines_of,
    set_lines,
    set_words,
    width_of,
)
from lab.extraction.page_layouts.usual import Make, turned
from lab.extraction.pdf_writer import Font, PdfPage, Words

_VOCABULARY = (
    *("der", "die", "und", "in", "den", "von", "zu", "das", "mit", "sich", "des", "auf", "für", "ist", "im", "dem"),
    *("nicht", "ein", "eine", "als", "auch", "es", "an", "werden", "aus", "er", "hat", "dass", "sie", "nach", "wird"),
    *("Lieferung", "Vertrag", "Zahlung", "Rechnung", "Vereinbarung", "Gewährleistung", "Kündigungsfrist", "Größe"),
    *("Auftraggeber", "Versicherung", "Haftung", "Niederlassung", "Geschäftsführer", "Umsatzsteuer"),
)
_TIMES = Type(font=Font.TIMES, size=9.5, leading=11, is_justified=True, is_divided=True)
_SMALL_TIMES = Type(font=Font.TIMES, size=7.5, leading=8.8, is_justified=True)
_COURIER = Type(font=Font.COURIER, size=8, leading=11)
_LETTER = (612.0, 792.0)


def _prose(draw: random.Random) -> Prose:
    return Prose(draw, _VOCABULARY)


def _made(name: str, words: Sequence[Words], text: str, prose: Prose, size: tuple[float, float] = _LETTER) -> MadePage:
    page = PdfPage(words=tuple(words), width=size[0], height=size[1])
    return MadePage(layout=name, pages=(page,), text=text, sentences=tuple(prose.sentences))


def journal(draw: random.Random) -> MadePage:
    """Return a first page of an article: title and authors in the middle, columns that start at different heights."""
    prose = _prose(draw)
    words: list[Words] = []
    parts: list[str] = []
    for y, size, num_words in ((70, 17, 5), (94, 11, 4)):
        line = prose.heading(num_words)
        x = (_LETTER[0] - width_of(line, Font.TIMES, size)) / 2
        words.append(Words(x=x, y=y, text=line, size=size, font=Font.TIMES))
        parts.append(line)
    first = Frame(x=50, y=125, width=250, num_lines=54)
    second = replace(first, x=50 + 250 + 12, y=125 + draw.choice((0, 3.5, 5.5)))
    placed, text = flow(prose, [first, second], _TIMES)
    number = Words(x=300, y=760, text="317", size=8, font=Font.TIMES)
    return _made("article", [*words, *placed, number], " ".join([*parts, text, "317"]), prose)


def newspaper(draw: random.Random) -> MadePage:
    """Return four narrow columns below a headline, and one across below them."""
    prose, width = _prose(draw), 120.0
    headline = prose.heading(6)
    frames = [Frame(x=45 + number * (width + 13), y=120, width=width, num_lines=40) for number in range(4)]
    words, text = flow(prose, frames, replace(_TIMES, size=8.5, leading=10))
    across, end = flow(prose, [Frame(x=45, y=120 + 40 * 10 + 30, width=519, num_lines=8)], _TIMES)
    top = Words(x=45, y=90, text=headline, size=22, font=Font.TIMES)
    return _made("4 columns, prose below", [top, *words, *across], f"{headline} {text} {end}", prose)


def unequal(draw: random.Random) -> MadePage:
    """Return a narrow column of notes left of a wide one, in a typewriter's font."""
    prose = _prose(draw)
    side, notes = flow(prose, [Frame(x=40, y=82, width=135, num_lines=draw.randint(10, 40))], _COURIER)
    body, text = flow(prose, [Frame(x=195, y=80, width=360, num_lines=58)], replace(_COURIER, size=9, leading=11.5))
    return _made("notes on the left", [*body, *side], f"{notes} {text}", prose)


def landscape(draw: random.Random) -> MadePage:
    """Return three columns on a page that lies on its side; the middle one is drawn last."""
    prose = _prose(draw)
    frames = [Frame(x=45 + number * 240, y=80, width=222, num_lines=40) for number in range(3)]
    words, text = flow(prose, frames, replace(_TIMES, size=10.5, leading=12.5))
    middle = [each for each in words if 270 < each.x < 510]
    words = [each for each in words if each not in middle] + middle
    return _made("3 columns, landscape", words, text, prose, (792.0, 612.0))


def with_caption(draw: random.Random) -> MadePage:
    """Return two columns, a caption across both below a figure, and two columns again."""
    prose = _prose(draw)
    upper, first = flow(prose, [Frame(x=x, y=70, width=244, num_lines=22) for x in (54, 314)], _TIMES)
    line = f"Abb. 3: {prose.heading(8)}"
    middle = (_LETTER[0] - width_of(line, Font.TIMES, 8)) / 2
    caption = Words(x=middle, y=440, text=line, size=8, font=Font.TIMES)
    lower, second = flow(prose, [Frame(x=x, y=470, width=244, num_lines=20) for x in (54, 314)], _TIMES)
    return _made("2 columns, caption across", [*upper, *lower, caption], f"{first} {line} {second}", prose)


def one_footnote(draw: random.Random) -> MadePage:
    """Return two justified columns of which only the first has a footnote, between a header and a page number."""
    prose = _prose(draw)
    header = prose.heading(3)
    frames = [Frame(x=48, y=80, width=252, num_lines=46), Frame(x=316, y=80, width=252, num_lines=52)]
    words, text = flow(prose, frames, _TIMES)
    small, note = flow(prose, [Frame(x=48, y=80 + 46 * 11 + 12, width=252, num_lines=4)], _SMALL_TIMES)
    small[0] = replace(small[0], text=f"* {small[0].text}")
    small[0] = replace(small[0], x=small[0].x - width_of("* ", Font.TIMES, 7.5))
    head = Words(x=48, y=50, text=header, size=8, font=Font.TIMES)
    number = Words(x=556, y=50, text="88", size=8, font=Font.TIMES)
    return _made("footnote of one column", [head, number, *words, *small], f"{header} 88 {text} * {note}", prose)


def paired_form(draw: random.Random) -> MadePage:
    """Return a form of two fields in each row; all labels are drawn before the values."""
    names = ("Vorname", "Nachname", "Straße", "Ort", "Telefon", "Geburtstag", "Steuernummer", "Konto", "Bank", "Datum")
    prose = _prose(draw)
    labels: list[Words] = []
    values: list[Words] = []
    lines: list[str] = []
    for place, name in enumerate(names):
        x, y = 60 + 260 * (place % 2), 100 + 31 * (place // 2)
        value = f"{prose.heading(draw.randint(1, 2))} {draw.randrange(100)}"
        labels.append(Words(x=x, y=y, text=name, size=9, font=Font.TIMES))
        values.append(Words(x=x + 85, y=y + 1, text=value, size=9, font=Font.COURIER))
        lines.append(f"{name} {value}")
    page = PdfPage(words=(*labels, *values))
    return MadePage(layout="form, 2 fields in a row", pages=(page,), text=" ".join(lines), sentences=tuple(lines))


def scattered(draw: random.Random) -> MadePage:
    """Return two justified columns whose words are drawn in any order."""
    prose = _prose(draw)
    words, text = flow(prose, [Frame(x=x, y=70, width=244, num_lines=56) for x in (54, 311)], _TIMES)
    draw.shuffle(words)
    return _made("2 justified columns, words in any order", words, text, prose)


def turned_columns(draw: random.Random) -> MadePage:
    """Return two columns of turned typewriter text on a page that is itself turned."""
    prose = _prose(draw)
    words, text = flow(prose, [Frame(x=x, y=70, width=240, num_lines=56) for x in (50, 312)], _COURIER)
    made = _made("2 columns, text and page turned", words, text, prose)
    page = replace(turned(made.pages[0], draw.choice((90, 180, 270))), rotation=draw.choice((90, 180, 270)))
    return replace(made, pages=(page,))


def table_in_column(draw: random.Random) -> MadePage:
    """Return two columns; the second has a table of four rows between its paragraphs."""
    prose = _prose(draw)
    left, first = flow(prose, [Frame(x=54, y=70, width=244, num_lines=56)], _TIMES)
    upper, second = flow(prose, [Frame(x=316, y=70, width=244, num_lines=20)], _TIMES)
    rows = [("Jahr", "Umsatz", "Ertrag")]
    rows += [(str(2019 + n), f"{draw.randrange(10**5)}", f"{draw.randrange(10**4) / 10:.1f}") for n in range(4)]
    cells: list[Words] = []
    columns = (316, 400, 490)
    for row, texts in enumerate(rows):
        for x, text in zip(columns, texts, strict=True):
            cells.append(Words(x=x, y=306 + 13 * row, text=text, size=9, font=Font.TIMES))
    lower, third = flow(prose, [Frame(x=316, y=392, width=244, num_lines=24)], _TIMES)
    text = " ".join([first, second, *(" ".join(texts) for texts in rows), third])
    made = _made("table in a column", [*left, *upper, *lower, *cells], text, prose)
    known = tuple((row, column, text) for row, texts in enumerate(rows) for column, text in enumerate(texts))
    return replace(made, cells=known)


def table_of_wrapped_cells(draw: random.Random) -> MadePage:
    """Return a table whose descriptions take one to three lines."""
    prose, style = _prose(draw), Type(font=Font.TIMES, size=10, leading=11.5)
    rows, y = [("Pos.", "Beschreibung", "Menge", "Betrag")], 100.0
    words: list[Words] = []
    for number in range(1, draw.randint(6, 12)):
        description = prose.heading(draw.randint(3, 14))
        rows.append((f"{number}.", description, str(draw.randrange(1, 50)), f"{draw.randrange(10**6) / 100:.2f}"))
    for texts in rows:
        lines = list(lines_of(texts[1], 200, style))
        for x, text in ((60, texts[0]), (350, texts[2]), (460, texts[3])):
            words += set_words(text, x, y, style)
        words += set_lines(lines, Frame(x=100, y=y, width=200, num_lines=len(lines)), style)
        y += 11.5 * len(lines) + 7
    cells = tuple((row, column, text) for row, texts in enumerate(rows) for column, text in enumerate(texts))
    made = _made("table with long cells", words, " ".join(" ".join(texts) for texts in rows), prose)
    return replace(made, sentences=tuple(" ".join(texts) for texts in rows), cells=cells)


def letter(draw: random.Random) -> MadePage:
    """Return a letter: an address, a date on the right, paragraphs."""
    prose, style = _prose(draw), replace(_TIMES, size=11, leading=14, is_justified=False)
    address = [prose.heading(2) for _ in range(4)]
    words = set_lines(address, Frame(x=70, y=90, width=200, num_lines=4), style)
    words.append(Words(x=450, y=190, text="4. März 2026", size=11, font=Font.TIMES))
    body, text = flow(prose, [Frame(x=70, y=225, width=470, num_lines=30)], style)
    return _made("letter", [*words, *body], " ".join([*address, "4. März 2026", text]), prose)


LAYOUTS: tuple[Make, ...] = (
    *(letter, journal, newspaper, unequal, landscape, with_caption, one_footnote),
    *(paired_form, scattered, turned_columns, table_in_column, table_of_wrapped_cells),
)
