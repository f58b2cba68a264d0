"""Measure how pictures of pages are read with the extra [ocr]: straight, turned, skewed, and photographed.

Generated pages are drawn with 200 pixels an inch, changed, and read as images. Error: edits for each character of the
known text, blanks alike; words: those of the known text that are in the text read, counted; cells whose row, column and
text are right. Seconds are processor time for a page.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pypdfium2
from PIL import Image, ImageFilter
from rapidfuzz.distance import Levenshtein

from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.documents.readers import ocr
from features.documents.extraction.errors import DocumentError
from lab.extraction.page_layouts import held_out, usual
from lab.extraction.page_layouts.typesetting import MadePage
from lab.extraction.pdf_writer import write_pdf
from lab.extraction.reading_order import right_cells

_PER_INCH = 200
_SKEW_DEGREES = 3
_PAPER = 255
_DESK = 90
_LAYOUTS = (*(usual.LAYOUTS[index] for index in (0, 1, 9, 16)), *(held_out.LAYOUTS[index] for index in (0, 7)))
"""One and two columns, two forms, a table between prose, a letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All pages of one layout and one way to take their picture."""

    layout: str
    picture: str
    text_error: float
    num_words: int
    whole_words: int
    num_cells: int
    right_cells: int
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table by layout and picture, as text or JSON."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction pictures", description=__doc__)
    parser.add_argument("--files", type=int, default=2, help="of each layout")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    if not ocr.is_installed():
        parser.error("pictures are read with the extra `ocr`: install tokenmill[documents,ocr]")
    rows = measure(num_files=arguments.files, seed=arguments.seed)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return 0
    print(f"{'layout':<32}{'picture':<16}{'error':>8}{'words':>14}{'cells':>10}{'seconds':>9}")
    for row in rows:
        cells = f"{row.right_cells}/{row.num_cells}" if row.num_cells else ""
        words = f"{row.whole_words}/{row.num_words}"
        print(f"{row.layout:<32}{row.picture:<16}{row.text_error:>8.4f}{words:>14}{cells:>10}{row.seconds:>9.1f}")
    return 0


def measure(*, num_files: int, seed: int) -> list[Row]:
    """Read pages of every layout in every picture."""
    ocr.load()
    return [
        _row(name, [make(random.Random(f"{seed} {number}")) for number in range(num_files)])
        for make in _LAYOUTS
        for name in PICTURES
    ]


def _row(picture: str, made: Sequence[MadePage]) -> Row:
    readings = [_reading(picture, each) for each in made]
    return Row(
        layout=made[0].layout,
        picture=picture,
        text_error=statistics.mean(error for error, *_ in readings),
        num_words=sum(len(each.text.split()) for each in made),
        whole_words=sum(words for _, words, *_ in readings),
        num_cells=sum(len(each.cells) for each in made),
        right_cells=sum(cells for _, _, cells, _ in readings),
        seconds=statistics.mean(seconds for *_, seconds in readings),
    )


def _reading(picture: str, made: MadePage) -> tuple[float, int, int, float]:
    """Return the error, the whole words, the right cells and the seconds of a page."""
    stored = io.BytesIO()
    PICTURES[picture](_drawn(made)).save(stored, "JPEG", quality=85)
    started = time.process_time()
    try:
        document = parse(stored.getvalue(), "made.jpg", Limits())
    except DocumentError:
        return 1.0, 0, 0, time.process_time() - started
    seconds = time.process_time() - started
    known, text = made.text.split(), document.text.split()
    error = Levenshtein.distance(" ".join(known), " ".join(text)) / len(" ".join(known))
    return error, (Counter(known) & Counter(text)).total(), right_cells(made, document), seconds


def _drawn(made: MadePage) -> Image.Image:
    bitmap = pypdfium2.PdfDocument(write_pdf(list(made.pages)))[0].render(scale=_PER_INCH / 72, grayscale=True)
    return Image.fromarray(bitmap.to_numpy())


def _turned(degrees: float) -> Callable[[Image.Image], Image.Image]:
    def turned(page: Image.Image) -> Image.Image:
        return page.rotate(degrees, expand=True, fillcolor=_PAPER, resample=Image.Resampling.BICUBIC)

    return turned


def _photographed(page: Image.Image) -> Image.Image:
    """Return a page on a desk, askew and in perspective, unevenly lit, a little blurred, with noise."""
    width, height = page.size
    desk = Image.new("L", (round(1.15 * width), round(1.15 * height)), _DESK)
    desk.paste(page, (round(0.07 * width), round(0.07 * height)))
    wide, high = desk.size
    corners = (0.03 * wide, 0.02 * high, 0, 0.98 * high, wide, high, 0.96 * wide, 0)  # shown at those of the picture
    shown = desk.transform(desk.size, Image.Transform.QUAD, corners, Image.Resampling.BICUBIC, fillcolor=_DESK)
    shown = shown.rotate(2, fillcolor=_DESK, resample=Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(0.8))
    light = np.linspace(0.65, 1.0, wide)[None, :] * np.linspace(1.0, 0.85, high)[:, None]
    noise = np.random.default_rng(0).normal(0, 6, (high, wide))
    return Image.fromarray(np.clip(np.asarray(shown) * light + noise, 0, 255).astype(np.uint8))


PICTURES: Mapping[str, Callable[[Image.Image], Image.Image]] = {
    "straight": _turned(0),
    "turned by 90°": _turned(90),
    "turned by 180°": _turned(180),
    "turned by 270°": _turned(270),
    "skewed by 3°": _turned(_SKEW_DEGREES),
    "photograph": _photographed,
}
"""How pictures are taken of a page."""


if __name__ == "__main__":
    raise SystemExit(main())
