"""Writes the text of a page anew, with its words in another order, and moves spans and boxes with them.

Words that a line end divides are joined as PDFium joins them: without the hyphen between small letters, with it after
other letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain

import numpy as np

from features.documents.extraction.documents.page_text import PageText

_HYPHEN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The words of a page in their new order: lists that grow word by word."""

    words: list[int] = field(default_factory=list)
    separators: list[str] = field(default_factory=list)  # before each word
    continued: list[int] = field(default_factory=list)  # places in `words` of those that begin a line within a text
    cells: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # places, start and end; table row column

    def add_line(self, words: Sequence[int], separator: str, *, is_continued: bool) -> None:
        """Append the words of a line."""
        if is_continued and self.words:
            self.continued.append(len(self.words))
        self.words.extend(words)
        self.separators.append(separator)
        self.separators.extend([" "] * (len(words) - 1))


def rewritten(page: PageText, placement: Placement) -> PageText:
    """Return a page with all its words in this order."""
    texts, separators = _joined(page, placement)
    lengths = list(map(len, texts))
    steps = [len(before) + length for before, length in zip(separators, lengths, strict=True)]
    ends = list(accumulate(steps))
    starts = [end - length for end, length in zip(ends, lengths, strict=True)]
    return replace(
        page,
        text="".join(chain.from_iterable(zip(separators, texts, strict=True))),
        spans=np.array([starts, ends], np.int64).T,
        boxes=page.boxes[placement.words],
        ocr_scores=page.ocr_scores[placement.words],
        cells=tuple(
            (starts[first], ends[end - 1], table, row, column) for first, end, table, row, column in placement.cells
        ),
    )


def _joined(page: PageText, placement: Placement) -> tuple[list[str], list[str]]:
    """Return the words and what separates them, with words whole that line ends divide."""
    words, joints, order = _words(page), _joints(page), placement.words
    texts, separators = [words[word] for word in order], ["", *placement.separators[1:]]
    begin_cell, whole = {first for first, *_ in placement.cells}, set[int]()
    for place in np.flatnonzero(np.isin(order, list(joints))).tolist() if joints else ():
        joint = joints[order[place]]
        is_next = order[place + 1 : place + 2] == [order[place] + 1]
        if is_next and place + 1 not in begin_cell:
            texts[place], separators[place + 1] = texts[place] + joint, ""
            whole.add(place + 1)
        else:
            texts[place] += joint.rstrip() or _HYPHEN
    for place in placement.continued:
        before = texts[place - 1]
        if place not in whole and len(before) > 1 and before[-1] == _HYPHEN and before[-2].isalpha():
            is_in_word = before[-2].islower() and texts[place][:1].islower()
            texts[place - 1], separators[place] = before[:-1] if is_in_word else before, ""
    return texts, separators


def _words(page: PageText) -> list[str]:
    """Return the words, each with signs of unknown meaning that stand alone after it; the first also with those before.

    What joins a word with the next is not part of it (`_joints`).
    """
    ends = [*page.spans[1:, 0].tolist(), len(page.text)]
    words = [
        page.text[start:stop] + (after.rstrip() if (after := page.text[stop:end])[:1].isspace() else "")
        for (start, stop), end in zip(page.spans.tolist(), ends, strict=True)
    ]
    first, last = page.spans[0, 0], page.spans[-1, 1]
    words[0] = page.text[:first].lstrip() + words[0]
    if not page.text[last : last + 1].isspace():
        words[-1] += page.text[last:].rstrip()
    return words


def _joints(page: PageText) -> dict[int, str]:
    """Return what joins words without a blank, by the first: the hyphen of a line end, unknown signs, or nothing."""
    between = zip(page.spans[:-1, 1].tolist(), page.spans[1:, 0].tolist(), strict=True)
    gaps = ((number, page.text[start:end]) for number, (start, end) in enumerate(between))
    return {number: gap for number, gap in gaps if not gap[:1].isspace()}
