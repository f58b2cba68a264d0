"""Passages of several documents as one prompt shows them: each with its number and the name of its document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPassage:
    """A passage as it is put into a prompt."""

    document: str
    """Its name."""
    shown: str
    """The headings that it stands below, and its text."""


def layout(passages: Sequence[ShownPassage]) -> str:
    """Return passages as a prompt shows them, in their order, with a blank line between; of none it is empty."""
    return BETWEEN.join(numbered(number, passage) for number, passage in enumerate(passages, start=1))


def numbered(number: int, passage: ShownPassage) -> str:
    """Return one of them: `[1] name`, a line end, what is shown; its own text ends it."""
    return f"[{number}] {' '.join(passage.document.split())}\n{passage.shown}"
