"""What a model said of one leaf, and what was made of it.

Knows no text and no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.fields.paths import Path, Place, path_of
from features.documents.extraction.grounding.align import Sought, ground
from features.documents.extraction.grounding.spans import NOWHERE, Grounding, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value as an answer has it; null where the document is said to lack it."""

    place: Place
    value: Any
    quote: str | None = None
    answer_start: int = 0
    """Of the value in the answer's text, without the quotes around a string: where its log-probabilities are."""
    answer_end: int = 0
    said_at: int | None = None
    """Where the answer decides between null and a value with its quote; None where the value itself decides it."""

    @property
    def path(self) -> Path:
        """Return the path of its leaf."""
        return path_of(self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What could be read of an answer."""

    readings: tuple[Reading, ...]
    missing: tuple[Path, ...] = ()
    """Leaves that it does not answer, or whose array it does not end: to be asked again."""
    unreadable: tuple[Path, ...] = ()
    """Of those, leaves that it answers with what has no one meaning as a value of theirs."""
    cut_at: Path | None = None
    """Of those, the leaf within which it ends; None where it is whole, or ends elsewhere."""


class Agreement(StrEnum):
    """What the second reading says of a value."""

    AGREES = "agrees"  # the same value at the same place
    ELSEWHERE = "elsewhere"  # the same value at another place
    DIFFERS = "differs"  # another value at the same place
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLogprobs:
    """Of the tokens that a value was decided by."""

    mean: float
    minimum: float
    margin: float | None = None
    """The least lead over the next likely token; None where no others were asked for."""
    stated: float | None = None
    """Of the token that decided that there is a value at all; None where the value's own tokens did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A reading, where it stands in the document, and what else was learned of it; None where nobody asked."""

    reading: Reading
    grounding: Grounding = NOWHERE
    agreement: Agreement | None = None
    logprobs: ValueLogprobs | None = None
    reasons: tuple[str, ...] = ()
    """What was noted on the way, in words."""

    @property
    def place(self) -> Place:
        """Return the place of its value in the answer."""
        return self.reading.place

    @property
    def path(self) -> Path:
        """Return the path of its leaf."""
        return self.reading.path

    @property
    def value(self) -> Any:
        """Return the value."""
        return self.reading.value

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return where it stands."""
        return self.grounding.spans


def ground_readings(readings: Sequence[Reading], group: Group, text: str) -> list[Finding]:
    """Return readings with their places in the text that the prompt showed; values that are concluded have none."""
    leaves = {leaf.path: leaf for leaf in group.leaves}
    grounded = [reading for reading in readings if reading.value is not None and leaves[reading.path].ground]
    sought = [_sought(reading, leaves[reading.path]) for reading in grounded]
    found = dict(zip((reading.place for reading in grounded), ground(sought, text), strict=True))
    return [Finding(reading=reading, grounding=found.get(reading.place, NOWHERE)) for reading in readings]


def _sought(reading: Reading, leaf: Leaf) -> Sought:
    return Sought(value=reading.value, kind=leaf.kind, quote=reading.quote, is_copied=leaf.is_copied)


def relocate(findings: Iterable[Finding], to_document: Callable[[int, int], tuple[int, int]]) -> list[Finding]:
    """Return findings with spans of the document's text, given the way there from those of the prompt's."""
    return [
        replace(
            each, grounding=replace(each.grounding, spans=tuple(Span(*to_document(s.start, s.end)) for s in each.spans))
        )
        for each in findings
    ]
