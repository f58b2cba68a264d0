"""Set sentences in lines and columns, with the widths of real fonts."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import pypdfium2
import pypdfium2.raw as pdfium

from lab.extraction.pdf_writer import Font, PdfPage, Words

_LONG = 8
"""Letters of a word that may be divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePage:
    """A file of one layout: its pages, its text in reading order, its sentences, and its cells if it has a table."""

    layout: str
    pages: tuple[PdfPage, ...]
    text: str
    sentences: tuple[str, ...] = ()
    cells: tuple[tuple[int, int, str], ...] = ()
    """Row, column and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """How lines look."""

    font: Font = Font.HELVETICA
    size: float = 10.0
    leading: float = 13.0
    is_justified: bool = False
    is_divided: bool = False
    """Long words are divided at line ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The place of a column, in points from the top left; `y` is the first baseline."""

    x: float
    y: float
    width: float
    num_lines: int


@dataclass(slots=True)
class Prose:
    """A source of sentences that never repeat."""

    draw: random.Random
    vocabulary: Sequence[str]
    sentences: list[str] = field(default_factory=list)

    def sentence(self, least: int = 8, most: int = 20) -> str:
        """Return a new sentence and remember it."""
        words = [self.draw.choice(self.vocabulary) for _ in range(self.draw.randint(least, most))]
        sentence = " ".join(words).capitalize() + f" {len(self.sentences) + 1}."
        self.sentences.append(sentence)
        return sentence

    def heading(self, num_words: int = 5) -> str:
        """Return words that are no sentence."""
        return " ".join(self.draw.choice(self.vocabulary) for _ in range(num_words)).title()


def width_of(text: str, font: Font, size: float) -> float:
    """Return the width of a line in points."""
    return sum(map(_thousandths(font).__getitem__, text.encode("cp1252"))) * size / 1000


@cache
def _thousandths(font: Font) -> tuple[float, ...]:
    """Return the widths of all characters of Windows-1252, for a size of 1000."""
    document = pypdfium2.PdfDocument.new()
    face, width = pdfium.FPDFText_LoadStandardFont(document.raw, font.encode()), ctypes.c_float()
    widths: list[float] = []
    for code in range(256):
        sign = bytes([code]).decode("cp1252", "replace")
        pdfium.FPDFFont_GetGlyphWidth(face, ord(sign), 1000.0, width)
        widths.append(width.value)
    document.close()
    return tuple(widths)


def lines_of(text: str, width: float, style: Type) -> Iterator[str]:
    """Yield the lines of a text."""
    room, line = width, ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if width_of(longer, style.font, style.size) <= room:
            line = longer
            continue
        middle = len(word) // 2
        begun = f"{line} {word[:middle]}-"
        if style.is_divided and len(word) >= _LONG and width_of(begun, style.font, style.size) <= room:
            yield begun
            line = word[middle:]
        else:
            yield line
            line = word
    yield line


def set_lines(lines: Sequence[str], frame: Frame, style: Type) -> list[Words]:
    """Return lines below each other; all but the last fill the frame if the type is justified."""
    words: list[Words] = []
    for number, line in enumerate(lines):
        y, is_last = frame.y + number * style.leading, number + 1 == len(lines)
        if style.is_justified:
            words += set_words(line, frame.x, y, style, None if is_last else frame.width)
        else:
            words.append(Words(x=frame.x, y=y, text=line, size=style.size, font=style.font))
    return words


def set_words(line: str, x: float, y: float, style: Type, width: float | None = None) -> list[Words]:
    """Return the words of a line one by one, spread over a width if there is one."""
    parts = line.split()
    widths = [width_of(part, style.font, style.size) for part in parts]
    blank = width_of(" ", style.font, style.size)
    if width is not None and len(parts) > 1:
        blank = (width - sum(widths)) / (len(parts) - 1)
    words = []
    for part, part_width in zip(parts, widths, strict=True):
        words.append(Words(x=x, y=y, text=part, size=style.size, font=style.font))
        x += part_width + blank
    return words


def flow(prose: Prose, frames: Sequence[Frame], style: Type) -> tuple[list[Words], str]:
    """Fill columns with sentences that go on in the next column; return the words and the text."""
    assert len({frame.width for frame in frames}) == 1, "lines are broken once for all columns"
    num_lines, text, kept, lines = sum(frame.num_lines for frame in frames), "", "", [""]
    while len(lines) <= num_lines:
        kept, text = text, f"{text} {prose.sentence()}".strip()
        lines = list(lines_of(text, frames[0].width, style))
    prose.sentences.pop()  # the last one does not fit
    lines = list(lines_of(kept, frames[0].width, style))
    words: list[Words] = []
    for frame in frames:
        words += set_lines(lines[: frame.num_lines], frame, style)
        lines = lines[frame.num_lines :]
    return words, kept
