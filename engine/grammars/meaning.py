"""What the values of a JSON schema have in common: their types, their properties, whether two schemas are disjoint.

Pure. Results hold for all values of a schema, but may miss facts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sized
from typing import Any, TypeVar

from engine.grammars.json_schema import NARROWED, Schema, schemas_in, target_of

T = TypeVar("T")

TYPES = frozenset({"null", "boolean", "object", "array", "number", "string"})

MAX_VISITS = 20_000
"""Limit on schemas visited for one grammar: visits cost Python time, which holds the interpreter's lock."""

_PARTS_PER_VISIT = 64
"""Names, values or characters whose reading costs as much as a visit."""

_KINDS = {type(None): "null", bool: "boolean", dict: "object", list: "array", int: "number", float: "number"}


class Inexpressible(Exception):
    """The opposite of a schema cannot be expressed, or not within MAX_VISITS."""


class Meaning:
    """Analyses the schemas of one document."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._has_scopes = any(map(_begins_scope, schemas_in(root)[1:]))
        self.place: Schema | None = None
        """The schema that is being rewritten: references to it tell nothing yet."""
        self._num_visits = 0
        self._values: dict[int, tuple[Any, dict[str, set[str]]]] = {}
        """Listed values by type, keyed by the list's identity; the list is referenced, so that its id stays unique."""
        self._followed: list[str] = []

    def are_disjoint(self, first: Any, second: Any) -> bool:
        """Tell whether no value can match both, as far as can be seen."""
        self._count(1, first, second)
        if first is False or second is False:
            return True
        if not isinstance(first, dict) or not isinstance(second, dict):
            return False
        first, second = _sure(first), _sure(second)
        for one, other in ((first, second), (second, first)):
            for parts, tell in ((self._conjuncts(one), any), (self._branches(one), all)):
                if parts and tell(self._guarded(part, other) for part in parts):
                    return True
        common = self.types_of(first) & self.types_of(second)
        return all(self._are_disjoint_as(kind, first, second) for kind in common)

    def types_of(self, schema: Any) -> frozenset[str]:
        """Return the types of the values that a schema may allow."""
        self._count(1, schema)
        if isinstance(schema, bool) or not isinstance(schema, dict):
            return frozenset() if schema is False else TYPES
        schema = _sure(schema)
        types = schema.get("type")
        possible = TYPES
        if types is not None:
            self._count(0, types)
            possible = frozenset(
                "number" if kind == "integer" else kind for kind in as_list(types) if isinstance(kind, str)
            )
        if (values := self._values_of(schema)) is not None:
            possible &= values.keys()
        for part in self._conjuncts(schema):
            possible &= self._types_within(part)
        if branches := self._branches(schema):
            possible &= frozenset().union(*map(self._types_within, branches))
        return possible

    def names_of(self, schema: Any) -> frozenset[str] | None:
        """Return the only properties that a schema's objects may have, None if any are allowed."""
        if not isinstance(schema, dict):
            return None
        schema = _sure(schema)
        if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
            self._count(1, schema.get("properties", ()))
            return frozenset(schema.get("properties", ()))
        names = [self._within(part, self.names_of) for part in self._conjuncts(schema)]
        return next((each for each in names if each is not None), None)

    # --- what two schemas have in common -----------------------------------------------------------------------------

    def _are_all_disjoint(self, branches: list[Any]) -> bool:
        pairs = ((one, other) for index, one in enumerate(branches) for other in branches[:index])
        return all(self.are_disjoint(one, other) for one, other in pairs)

    def _are_disjoint_as(self, kind: str, first: Schema, second: Schema) -> bool:
        values, others = (self._values_of(schema) for schema in (first, second))
        if values is not None and others is not None:
            fewer = min(values[kind], others[kind], key=len)
            self._count(1, fewer)
            return values[kind].isdisjoint(others[kind])
        if kind == "object":
            return self._are_disjoint_objects(first, second) or _are_disjoint_sizes("Properties", first, second)
        if kind in ("array", "string"):
            return _are_disjoint_sizes("Items" if kind == "array" else "Length", first, second)
        if kind == "number":
            return _are_disjoint_ranges(first, second)
        return False

    def _are_disjoint_objects(self, first: Schema, second: Schema) -> bool:
        required = [as_list(schema.get("required", [])) for schema in (first, second)]
        self._count(0, *required)
        names = {name for listed in required for name in listed}
        return any(self.are_disjoint(_property(first, name), _property(second, name)) for name in sorted(names))

    def _values_of(self, schema: Schema) -> dict[str, set[str]] | None:
        """Return the values that a schema lists, as texts that are equal if values are; None without a list."""
        if (listed := values_of(schema)) is None:
            return None
        source = schema["const"] if "const" in schema else schema["enum"]
        if id(source) not in self._values:
            by_kind: dict[str, set[str]] = {}
            for value in listed:
                by_kind.setdefault(kind_of(value), set()).add(json.dumps(_normal(value), sort_keys=True))
            self._values[id(source)] = source, by_kind
        return self._values[id(source)][1]

    # --- references --------------------------------------------------------------------------------------------------

    def _follow(self, reference: Any) -> Any:
        """Return the target of a reference; it is in `_followed` until it is popped."""
        self._count(0, reference if isinstance(reference, str) else ())
        is_known = isinstance(reference, str) and reference not in self._followed and not self._has_scopes
        target = target_of(self._root, reference) if is_known else None
        if target is None or target is self.place:
            raise Inexpressible
        self._followed.append(reference)
        return target

    def _within(self, part: Any, ask: Callable[[Any], T]) -> T | None:
        """Apply `ask` to a part that may be a reference; return None if that has no target."""
        if not isinstance(part, dict) or "$ref" not in part:
            return ask(part)
        try:
            target = self._follow(part["$ref"])
        except Inexpressible:
            return None
        try:
            return ask(target)
        finally:
            self._followed.pop()

    def _guarded(self, part: Any, other: Any) -> bool:
        return bool(self._within(part, lambda target: self.are_disjoint(target, other)))

    def _types_within(self, part: Any) -> frozenset[str]:
        types = self._within(part, self.types_of)
        return TYPES if types is None else types

    def _conjuncts(self, schema: Schema) -> list[Any]:
        """Return other schemas that must hold with this one."""
        return [{"$ref": schema["$ref"]}] if "$ref" in schema else as_list(schema.get("allOf", []))

    def _branches(self, schema: Schema) -> list[Any]:
        """Return schemas of which one must hold."""
        return next((as_list(schema[key]) for key in ("anyOf", "oneOf") if key in schema), [])

    def _count(self, num_visits: int, *read: object) -> None:
        """Count visits, and values that are `read` completely besides."""
        num_parts = sum(len(part) for part in read if isinstance(part, Sized))
        self._num_visits += num_visits + num_parts // _PARTS_PER_VISIT
        if self._num_visits > MAX_VISITS:
            raise Inexpressible

    def count_copies(self, schema: Any, num_copies: int) -> None:
        """Count by how much copies of a schema lengthen a document."""
        left = [schema]
        while left:
            part = left.pop()
            self._count(num_copies * (1 + (len(part) // _PARTS_PER_VISIT if isinstance(part, str) else 0)))
            if isinstance(part, dict):
                left += part.keys()
                left += part.values()
            elif isinstance(part, list):
                left += part


def _begins_scope(schema: Schema) -> bool:
    """Tell whether references in a schema are relative to itself."""
    return any(isinstance(name := schema.get(key), str) and not name.startswith("#") for key in ("$id", "id"))


def _sure(schema: Schema) -> Schema:
    """Return the part of a schema that holds for all its values.

    In older drafts keywords beside a reference are ignored; a narrowed schema allows less than the user's.
    """
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    return (
        {key: value for key, value in schema.items() if key not in ("allOf", "anyOf")} if NARROWED in schema else schema
    )


def values_of(schema: Schema) -> list[Any] | None:
    """Return the values that a schema lists, or None."""
    if "const" in schema:
        return [schema["const"]]
    return as_list(schema["enum"]) if "enum" in schema else None


def _property(schema: Schema, name: str) -> Any:
    properties = schema.get("properties", {})
    if name in properties:
        return properties[name]
    return schema.get("additionalProperties") is not False or bool(schema.get("patternProperties"))


def _are_disjoint_sizes(of: str, first: Schema, second: Schema) -> bool:
    return any(
        one.get(f"max{of}", float("inf")) < other.get(f"min{of}", 0)
        for one, other in ((first, second), (second, first))
    )


def _are_disjoint_ranges(first: Schema, second: Schema) -> bool:
    return any(
        isinstance(one.get("maximum"), int | float)
        and isinstance(other.get("minimum"), int | float)
        and one["maximum"] < other["minimum"]
        for one, other in ((first, second), (second, first))
    )


def kind_of(value: object) -> str:
    return _KINDS.get(type(value), "string")


def _normal(value: Any) -> Any:
    """Write integers in one way, since 1.0 is 1 in JSON."""
    if isinstance(value, dict):
        return {name: _normal(part) for name, part in value.items()}
    if isinstance(value, list):
        return list(map(_normal, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
