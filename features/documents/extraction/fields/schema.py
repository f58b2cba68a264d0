"""The fields asked of every document: the leaves of a JSON schema, and checks that must hold between them.

`reading.py` parses and validates schemas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from features.documents.extraction.errors import SchemaError
from features.documents.extraction.fields.allowed import value_schema
from features.documents.extraction.fields.expressions import Expression
from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.fields.paths import ITEM, Path
from features.documents.extraction.fields.reading import read_schema
from features.documents.extraction.fields.shapes import Container, list_schema, record_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSchema:
    """The leaves of a schema in order, the objects and arrays around them, and its checks."""

    leaves: tuple[Leaf, ...]
    containers: Mapping[Path, Container]
    checks: tuple[Expression, ...] = ()

    @classmethod
    def parse(cls, schema: str | bytes | Mapping[str, Any]) -> FieldSchema:
        """Read a JSON schema with `x-tokenmill` annotations. Raises SchemaError with the path of the faulty part."""
        if not isinstance(schema, Mapping):
            schema = _json(schema)
        leaves, containers, checks = read_schema(schema)
        return cls(leaves=leaves, containers=containers, checks=checks)

    def leaf(self, path: Path) -> Leaf:
        """Return the leaf at a path."""
        return next(leaf for leaf in self.leaves if leaf.path == path)

    def arrays(self) -> tuple[Path, ...]:
        """Return the paths of all arrays."""
        ends = (leaf.path[:end] for leaf in self.leaves for end, part in enumerate(leaf.path) if part == ITEM)
        return tuple(dict.fromkeys(ends))

    def value_schema(self, path: Path) -> dict[str, Any]:
        """Return the JSON schema of a person's input for a path: the value of a leaf, or an array's items."""
        leaf = next((leaf for leaf in self.leaves if leaf.path == path), None)
        return list_schema(path, self.leaves, self.containers) if leaf is None else value_schema(leaf)

    def output_schema(self) -> dict[str, Any]:
        """Return the JSON schema of `fields` in a record: as given, but every leaf may be null."""
        return record_schema(self.leaves, self.containers)


def _json(text: str | bytes) -> Mapping[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"The schema is not JSON: {error}.") from None
    if not isinstance(schema, dict):
        raise SchemaError(f"The schema is {_named(schema)}; it must be an object with `type: object` and `properties`.")
    return schema


def _named(value: Any) -> str:
    return {list: "an array", str: "a text", bool: "true or false", type(None): "null"}.get(type(value), "a number")
