"""Measure in which order pages are read: columns, sidebars, forms, turned pages, tables.

The text of a document and the text that prompts show are compared with the known text of generated pages: character
error (edits for each character of the known text, blanks alike) and sentences that are whole. Tables: cells whose row,
column and text are right. Speed: pages of the text, and of ordinary prose, per CPU second.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from rapidfuzz.distance import Levenshtein

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.layout import layout
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from lab.extraction.page_layouts import held_out, usual
from lab.extraction.page_layouts.typesetting import MadePage
from lab.extraction.pdf_writer import write_pdf

_FAMILIES = {"usual": usual.LAYOUTS, "held out": held_out.LAYOUTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How one file was read."""

    text_error: float
    prompt_error: float
    num_sentences: int
    whole_in_text: int
    whole_in_prompt: int
    num_cells: int
    right_cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All files of one layout."""

    family: str
    layout: str
    text_error: float
    prompt_error: float
    num_sentences: int
    whole_in_text: int
    whole_in_prompt: int
    num_cells: int
    right_cells: int


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table by layout, as text or JSON."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction reading_order", description=__doc__)
    parser.add_argument("--files", type=int, default=20, help="of each layout")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    rows = measure(num_files=arguments.files, seed=arguments.seed)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return 0
    print(f"{'layout':<46}{'error in text':>14}{'prompt':>8}{'whole in text':>15}{'prompt':>12}{'cells':>12}")
    for row in rows:
        print(
            f"{row.family + ': ' + row.layout:<46}{row.text_error:>14.3f}{row.prompt_error:>8.3f}"
            f"{f'{row.whole_in_text}/{row.num_sentences}':>15}{f'{row.whole_in_prompt}/{row.num_sentences}':>12}"
            + (f"{f'{row.right_cells}/{row.num_cells}':>12}" if row.num_cells else "")
        )
    return 0


def measure(*, num_files: int, seed: int) -> list[Row]:
    """Read files of every layout of both families."""
    return [
        _row(family, name, [compare(made) for made in of_layout])
        for family, makers in _FAMILIES.items()
        for make in makers
        for name, of_layout in groupby(
            (make(random.Random(f"{seed} {number}")) for number in range(num_files)), key=lambda made: made.layout
        )
    ]


def compare(made: MadePage) -> Reading:
    """Read a file and compare it with its known text."""
    document = parse(write_pdf(list(made.pages)), "made.pdf", Limits())
    text, prompt, known = (" ".join(each.split()) for each in (document.text, layout(document).text, made.text))
    return Reading(
        text_error=Levenshtein.distance(known, text) / len(known),
        prompt_error=Levenshtein.distance(known, prompt) / len(known),
        num_sentences=len(made.sentences),
        whole_in_text=sum(sentence in text for sentence in made.sentences),
        whole_in_prompt=sum(sentence in prompt for sentence in made.sentences),
        num_cells=len(made.cells),
        right_cells=right_cells(made, document),
    )


def right_cells(made: MadePage, document: Document) -> int:
    """Return how many cells of the first table have the right row, column and text."""
    cells = {
        (cell.row, cell.column, " ".join(document.text[cell.start : cell.end].split()))
        for cell in document.cells
        if cell.table == 0
    }
    return len(set(made.cells) & cells)


def _row(family: str, name: str, readings: Sequence[Reading]) -> Row:
    return Row(
        family=family,
        layout=name,
        text_error=statistics.mean(each.text_error for each in readings),
        prompt_error=statistics.mean(each.prompt_error for each in readings),
        num_sentences=sum(each.num_sentences for each in readings),
        whole_in_text=sum(each.whole_in_text for each in readings),
        whole_in_prompt=sum(each.whole_in_prompt for each in readings),
        num_cells=sum(each.num_cells for each in readings),
        right_cells=sum(each.right_cells for each in readings),
    )


if __name__ == "__main__":
    raise SystemExit(main())
