"""Groups of leaves that are asked together: few enough for a model to answer, and whole objects if they fit.

A schema of 369 leaves asked whole gives no valid answer even with large models (ExtractBench). Answer lengths are
estimated from the schema.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from features.documents.extraction.errors import SchemaError
from features.documents.extraction.fields.leaf import Kind, Leaf
from features.documents.extraction.fields.paths import ITEM, Path
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.fields.shapes import MAX_QUOTE_CHARACTERS, Container, plain_schema, quoted_schema

MAX_LEAVES = 25
TOKEN_SHARE = 0.6
"""Maximum expected share of `max_tokens` for an answer; the rest is for documents with more items."""

EXPECTED_ITEMS = 8
"""Of an array without `maxItems`."""
_CHARACTERS_PER_TOKEN = 3.0
"""Names and numbers take more tokens than prose."""
_VALUE_CHARACTERS = {Kind.BOOLEAN: 5, Kind.NUMBER: 8, Kind.MONEY: 9, Kind.DATE: 12, Kind.TEXT: 36}
_SYNTAX_CHARACTERS = 4
_QUOTED_CHARACTERS = 26
"""Length of `{"value":…,"quote":"…"}` itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Leaves that are asked in one request."""

    leaves: tuple[Leaf, ...]
    containers: Mapping[Path, Container]

    def plain_schema(self, *, max_characters: int | None = None) -> dict[str, Any]:
        """Return the JSON schema of an answer without quotes; `max_characters` limits its texts."""
        return plain_schema(self.leaves, self.containers, max_characters=max_characters)

    def quoted_schema(self, *, max_characters: int | None = None) -> dict[str, Any]:
        """Return the JSON schema of an answer with a quote for each value; `max_characters` limits texts and quotes."""
        return quoted_schema(self.leaves, self.containers, max_characters=max_characters)

    def restrict(self, leaves: Sequence[Leaf]) -> Group:
        """Return a group of some of the leaves, with the keys of their items."""
        paths = {leaf.path for leaf in leaves}
        items = {path[:end] for path in paths for end, part in enumerate(path, 1) if part == ITEM}
        kept = tuple(leaf for leaf in self.leaves if leaf.path in paths or (leaf.key and leaf.path[:-1] in items))
        return Group(leaves=kept, containers=self.containers)

    def ending_with(self, path: Path) -> Group:
        """Return the same leaves, ordered so that the leaf at `path` comes last, after those closest to it."""
        ordered = sorted(self.leaves, key=lambda leaf: _num_shared(leaf.path, path))
        return Group(leaves=tuple(ordered), containers=self.containers)


def _num_shared(path: Path, other: Path) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, other, strict=False)))


def groups(
    schema: FieldSchema,
    *,
    max_leaves: int = MAX_LEAVES,
    max_tokens: int | None = None,
    quotes: bool = True,
    apart: bool = False,
) -> tuple[Group, ...]:
    """Split a schema in order; a single leaf may exceed the limits.

    With `apart` no two top-level fields share a group. Raises SchemaError if the items of an array do not fit and have
    no key to join their parts.
    """
    packing = _Packing(max_leaves, math.inf if max_tokens is None else TOKEN_SHARE * max_tokens, schema, quotes)
    parts = _own_fields(schema.leaves) if apart else {(): schema.leaves}
    return tuple(
        Group(leaves=tuple(leaves), containers=schema.containers)
        for path, inside in parts.items()
        for leaves in packing.pack(packing.units(path, inside))
    )


def _own_fields(leaves: Sequence[Leaf]) -> dict[Path, list[Leaf]]:
    """Return the leaves of each top-level field of the schema."""
    leaves_of: dict[Path, list[Leaf]] = {}
    for leaf in leaves:
        leaves_of.setdefault(leaf.path[:1], []).append(leaf)
    return leaves_of


def answer_tokens(leaf: Leaf, containers: Mapping[Path, Container], *, quotes: bool) -> float:
    """Estimate the tokens of a leaf's part of an answer, for all its items together."""
    value = _value_characters(leaf)
    characters = len(leaf.name) + _SYNTAX_CHARACTERS + value + (_QUOTED_CHARACTERS + value if quotes else 0)
    arrays = (leaf.path[:end] for end, part in enumerate(leaf.path) if part == ITEM)
    items = math.prod(min(containers[path].max_items or EXPECTED_ITEMS, EXPECTED_ITEMS) for path in arrays)
    return items * characters / _CHARACTERS_PER_TOKEN


def unbounded_lists(leaves: Iterable[Leaf], containers: Mapping[Path, Container]) -> list[str]:
    """Return the names of lists around leaves that may have more items than an estimate counts."""
    arrays = dict.fromkeys(leaf.path[:end] for leaf in leaves for end, part in enumerate(leaf.path) if part == ITEM)
    long = [path for path in arrays if (containers[path].max_items or EXPECTED_ITEMS + 1) > EXPECTED_ITEMS]
    return [".".join(part for part in path if part != ITEM) for path in long]


def _value_characters(leaf: Leaf) -> int:
    if leaf.enum is not None:
        return max(len(str(value)) for value in leaf.enum) + 2
    usual = _VALUE_CHARACTERS[leaf.kind]
    return min(int(leaf.schema.get("maxLength", usual)), usual, MAX_QUOTE_CHARACTERS)


class _Packing:
    """Packs leaves into bins, in order."""

    def __init__(self, max_leaves: int, max_tokens: float, schema: FieldSchema, quotes: bool) -> None:
        self._max_leaves = max_leaves
        self._max_tokens = max_tokens
        self._tokens = {leaf.path: answer_tokens(leaf, schema.containers, quotes=quotes) for leaf in schema.leaves}

    def fits(self, leaves: Sequence[Leaf]) -> bool:
        return len(leaves) <= self._max_leaves and sum(self._tokens[leaf.path] for leaf in leaves) <= self._max_tokens

    def units(self, path: Path, leaves: Sequence[Leaf]) -> list[list[Leaf]]:
        """Return the leaves below a path in the largest parts that fit."""
        if self.fits(leaves) or leaves[0].path == path:
            return [list(leaves)]
        parts = dict.fromkeys(leaf.path[len(path)] for leaf in leaves)
        inner = [
            unit
            for part in parts
            for unit in self.units((*path, part), [leaf for leaf in leaves if leaf.path[len(path)] == part])
        ]
        return self._items(path, leaves, inner) if path and path[-1] == ITEM else inner

    def _items(self, path: Path, leaves: Sequence[Leaf], inner: list[list[Leaf]]) -> list[list[Leaf]]:
        """Return the parts of an array's items, each with the keys to join them again."""
        keys = [leaf for leaf in leaves if leaf.key and leaf.path[:-1] == path]
        if not keys:
            raise SchemaError(
                f"an item has {len(leaves)} fields, too many for one question, and no key to join its parts by."
                ' Mark a field of it with `"x-tokenmill": {"key": true}`, or ask for more fields or tokens at once.',
                path,
            )
        return [_ordered([*keys, *unit]) for unit in self.pack(inner, keys)]

    def pack(self, units: Sequence[list[Leaf]], always: Sequence[Leaf] = ()) -> list[list[Leaf]]:
        """Join consecutive units as long as they fit together with the leaves that are always asked."""
        packed: list[list[Leaf]] = []
        for unit in units:
            if packed and self.fits(_ordered([*always, *packed[-1], *unit])):
                packed[-1] = _ordered([*packed[-1], *unit])
            else:
                packed.append(list(unit))
        return packed


def _ordered(leaves: Sequence[Leaf]) -> list[Leaf]:
    return list({leaf.path: leaf for leaf in leaves}.values())
