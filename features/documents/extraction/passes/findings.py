"""A model's answer for one leaf, and what is known about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.fields.paths import Path, Place, path_of
from features.documents.extraction.grounding.align import Sought, ground
from features.documents.extraction.grounding.labels import label_of
from features.documents.extraction.grounding.spans import NOWHERE, Grounding, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value from an answer; null if the document is said to lack it."""

    place: Place
    value: Any
    quote: str | None = None
    answer_start: int = 0
    """Start of the value in the answer's text, without the quotes of a string; locates its log-probabilities."""
    answer_end: int = 0
    said_at: int | None = None
    """Where the answer decides between null and a value with its quote; None if the value itself decides it."""

    @property
    def path(self) -> Path:
        """Return the path of its leaf."""
        return path_of(self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The readable content of an answer."""

    readings: tuple[Reading, ...]
    missing: tuple[Path, ...] = ()
    """Leaves without an answer or with an incomplete array; to be asked again."""
    unreadable: tuple[Path, ...] = ()
    """Those among them whose answer has no unambiguous value."""
    cut_at: Path | None = None
    """The one among them in which the answer ends; None if it is complete or ends elsewhere."""


class Agreement(StrEnum):
    """Result of comparing a value with the second reading."""

    AGREES = "agrees"  # the same value at the same place
    ELSEWHERE = "elsewhere"  # the same value at another place
    DIFFERS = "differs"  # another value at the same place
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLogprobs:
    """Log-probabilities of the tokens that decided a value."""

    mean: float
    minimum: float
    margin: float | None = None
    """Smallest lead over the next likely token; None if no alternatives were requested."""
    stated: float | None = None
    """Log-probability of the token that decided that there is a value; None if the value's own tokens did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A reading with its place in the document and further results; None for checks that were not made."""

    reading: Reading
    grounding: Grounding = NOWHERE
    agreement: Agreement | None = None
    logprobs: ValueLogprobs | None = None
    reasons: tuple[str, ...] = ()
    """Notes made during processing."""

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
        """Return the places of the value."""
        return self.grounding.spans


def ground_readings(readings: Sequence[Reading], group: Group, text: str) -> list[Finding]:
    """Return readings with their places in the text that the prompt showed; concluded values have none."""
    leaves = {leaf.path: leaf for leaf in group.leaves}
    grounded = [reading for reading in readings if reading.value is not None and leaves[reading.path].ground]
    sought = [_sought(reading, leaves[reading.path]) for reading in grounded]
    grounding_of = dict(zip((reading.place for reading in grounded), ground(sought, text), strict=True))
    return [Finding(reading=reading, grounding=grounding_of.get(reading.place, NOWHERE)) for reading in readings]


def _sought(reading: Reading, leaf: Leaf) -> Sought:
    return Sought(
        value=reading.value, kind=leaf.kind, quote=reading.quote, is_copied=leaf.is_copied, label=label_of(leaf)
    )


def relocate(findings: Iterable[Finding], to_document: Callable[[int, int], tuple[int, int]]) -> list[Finding]:
    """Return findings with spans mapped from the prompt's text to the document's."""
    return [
        replace(
            each, grounding=replace(each.grounding, spans=tuple(Span(*to_document(s.start, s.end)) for s in each.spans))
        )
        for each in findings
    ]
