"""Layout of several documents' passages in a prompt: each with its number and the name of its document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPassage:
    """A passage as it appears in a prompt."""

    document: str
    """Name of the document."""
    shown: str
    """Its headings, and its text."""


def layout(passages: Sequence[ShownPassage]) -> str:
    """Return the passages as they appear in a prompt, in order, separated by blank lines; empty for none."""
    return BETWEEN.join(numbered(number, passage) for number, passage in enumerate(passages, start=1))


def numbered(number: int, passage: ShownPassage) -> str:
    """Return one passage: `[1] name`, a line end, then headings and text."""
    return f"[{number}] {' '.join(passage.document.split())}\n{passage.shown}"
