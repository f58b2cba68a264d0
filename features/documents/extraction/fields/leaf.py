"""One scalar that is asked of a document.

Knows no document and no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from features.documents.extraction.fields.paths import ITEM, Path


class LeafType(StrEnum):
    """What a value is in JSON."""

    STRING = "string"
    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"


class Metric(StrEnum):
    """When two values of a leaf count as the same, and how alike they are if not."""

    EXACT = "exact"  # the same normal form
    DATE = "date"  # the same day
    MONEY = "money"  # the same amount to the cent, and no two currencies
    ANLS = "anls"  # the same normal form, else by the likeness of texts
    SET = "set"  # of an array: whatever their order


class Kind(StrEnum):
    """How a value is written in a document, and so how it is normalised."""

    TEXT = "text"
    NUMBER = "number"
    MONEY = "money"
    DATE = "date"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One scalar of the schema, or one of an array's items."""

    path: Path
    type: LeafType
    format: str | None = None
    enum: tuple[Any, ...] | None = None
    nullable: bool = False
    """Whether the schema itself allows null. It may always be answered: a document need not name every field."""
    description: str = ""
    metric: Metric = Metric.EXACT
    ground: bool = True
    """Whether its value must stand in the document; not so for what is concluded (`x-derived: true`)."""
    key: bool = False
    """Of an item: it tells which items of several passages are the same."""
    required_for_auto: bool = False
    """Without it, nothing of the document goes on unseen."""
    weight: float = 1.0
    """What an error costs beside others: the order of reviews."""
    schema: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The JSON schema of a value other than null."""

    @property
    def name(self) -> str:
        """Return the last name of its path."""
        return next(part for part in reversed(self.path) if part != ITEM)

    @property
    def is_copied(self) -> bool:
        """Tell whether its value is a copy of words of the document: no choice, no boolean, nothing concluded."""
        return self.ground and self.enum is None and self.type is not LeafType.BOOLEAN

    @property
    def kind(self) -> Kind:
        """Return how its values are written."""
        if self.type is LeafType.BOOLEAN:
            return Kind.BOOLEAN
        if self.metric is Metric.MONEY:
            return Kind.MONEY
        if self.type in (LeafType.NUMBER, LeafType.INTEGER):
            return Kind.NUMBER
        return Kind.DATE if self.metric is Metric.DATE else Kind.TEXT
