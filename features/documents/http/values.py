"""Values that a person gives for fields, checked as far as possible without the schema."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator

from api.fields import storable
from features.documents.extraction.fields.reading import MAX_DEPTH

_MAX_WHOLE = 2**63 - 1
_MAX_CHARACTERS = 10_000


def _checked(value: Any) -> Any:
    for one in _scalars(value):
        if isinstance(one, str) and len(storable(one)) > _MAX_CHARACTERS:
            raise ValueError(f"A text has {len(one):,} characters; {_MAX_CHARACTERS:,} are allowed")
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError("Numbers must be finite")
        if isinstance(one, int) and abs(one) > _MAX_WHOLE:
            raise ValueError("Whole numbers must fit in 64 bits")
    return value


def _scalars(node: Any, depth: int = 0) -> Iterator[Any]:
    if not isinstance(node, dict | list):
        yield node
        return
    if depth == MAX_DEPTH:
        raise ValueError(f"Lists and objects are nested more than {MAX_DEPTH} deep, which no schema allows")
    for inner in node.values() if isinstance(node, dict) else node:
        yield from _scalars(inner, depth + 1)


Value = Annotated[Any, AfterValidator(_checked)]
"""A field, an item of a list, or all items of one; the schema of the extraction says what is allowed."""
