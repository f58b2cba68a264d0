"""A scalar field of a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from features.documents.extraction.fields.paths import ITEM, Path


class LeafType(StrEnum):
    """The JSON type of a value."""

    STRING = "string"
    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"


class Metric(StrEnum):
    """How values of a leaf are compared, and how similarity is measured."""

    EXACT = "exact"  # the same normal form
    DATE = "date"  # the same day
    MONEY = "money"  # the same amount to the cent, and no conflicting currencies
    ANLS = "anls"  # the same normal form, else text similarity
    SET = "set"  # for an array: in any order


class Kind(StrEnum):
    """How a value is written in documents, which determines its normalisation."""

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
    """Whether the schema itself allows null. Null is always allowed as an answer: a document may lack any field."""
    description: str = ""
    metric: Metric = Metric.EXACT
    ground: bool = True
    """Whether its value must occur in the document; false for concluded values (`x-derived: true`)."""
    key: bool = False
    """For items: equal values identify the same item in several passages."""
    required_for_auto: bool = False
    """If the value is missing, the document needs a review."""
    weight: float = 1.0
    """Relative cost of an error, for the order of reviews."""
    schema: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The JSON schema of a value other than null."""

    @property
    def name(self) -> str:
        """Return the last name of its path."""
        return next(part for part in reversed(self.path) if part != ITEM)

    @property
    def is_copied(self) -> bool:
        """Tell whether its value is copied from the document: no choice, boolean or conclusion."""
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
