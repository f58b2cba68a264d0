"""The opposite of a JSON schema, in the keywords that llguidance supports.

Pure: parsed JSON in, parsed JSON out. Each keyword's opposite is an option, and one of them must hold (JSON Schema
2020-12, Core 10.1: keywords do not depend on each other, except those handled here).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from engine.grammars.json_schema import KEYWORDS, NARROWED, Schema
from engine.grammars.meaning import TYPES, Inexpressible, Meaning, as_list, kind_of

_LEAST = {"minLength": ("string", "maxLength"), "minItems": ("array", "maxItems")} | {
    "minProperties": ("object", "maxProperties")
}
_MOST = {most: (kind, least) for least, (kind, most) in _LEAST.items()}


class Negation(Meaning):
    """Negates schemas of one document."""

    def negated(
        self, schema: Any, *, types: frozenset[str] = TYPES, names: frozenset[str] | None = None, is_exact: bool = True
    ) -> Any:
        """Return a schema that allows what `schema` does not. Raises Inexpressible.

        `types` are those of the relevant values, `names` the only properties that their objects may have. If it need
        not be exact it may allow less: a property is absent instead of having a wrong value.
        """
        self._count(1, schema)
        if isinstance(schema, bool):
            return not schema
        if isinstance(schema, dict) and "$ref" in schema:  # in some drafts keywords beside it are ignored
            with_target = self._follow(schema["$ref"])
            try:
                return self.negated(with_target, types=types, names=names, is_exact=is_exact)
            finally:
                self._followed.pop()
        options: list[Any] = []
        is_missing = False
        for keyword in _asserted(schema):
            try:
                options += self._opposites(keyword, schema, types, names, is_exact)
            except Inexpressible:
                is_missing = True
        options = [option for option in options if option is not False]
        if is_missing and (is_exact or not options):
            raise Inexpressible
        return {"anyOf": options} if options else False

    # --- the opposites of keywords -----------------------------------------------------------------------------------

    def _opposites(
        self, keyword: str, schema: Schema, types: frozenset[str], names: frozenset[str] | None, is_exact: bool
    ) -> list[Any]:
        value = schema[keyword]
        if keyword in ("const", "enum"):
            values = [value] if keyword == "const" else as_list(value)
            self._count(sum(1 + (len(one) if isinstance(one, str) else 0) for one in values))
            return list(_other_values(values, types))
        if keyword == "type":
            self._count(0, value)
            return list(_other_types(as_list(value), types))
        if keyword in ("allOf", "anyOf", "oneOf"):
            parts = [self.negated(part, types=types, names=names, is_exact=is_exact) for part in as_list(value)]
            if keyword == "oneOf" and not self._are_all_disjoint(as_list(value)):
                raise Inexpressible
            return parts if keyword == "allOf" else [False] if False in parts else [{"allOf": parts}]
        if keyword == "not":
            self.count_copies(value, 1)
            return [copy.deepcopy(value)]  # a copy, since it may contain its own destination
        if keyword in ("required", "properties", "additionalProperties"):
            return list(self._other_objects(keyword, schema, names, is_exact)) if "object" in types else []
        return _other_bounds(keyword, schema, types)

    def _other_objects(
        self, keyword: str, schema: Schema, names: frozenset[str] | None, is_exact: bool
    ) -> Iterator[Schema]:
        value = schema[keyword]
        if keyword == "required":
            self._count(len(as_list(value)))
            for name in as_list(value):
                yield {"type": "object", "properties": {name: False}}
            return
        self._count(0, value, names, schema.get("properties"))
        if keyword == "properties":
            wrong = {name: part for name, part in value.items() if names is None or name in names}
        elif value is True or value == {}:
            return
        elif names is None or schema.get("patternProperties"):
            raise Inexpressible
        else:
            wrong = dict.fromkeys(sorted(names - set(schema.get("properties", ()))), value)
        for name, part in wrong.items():
            try:
                opposite = self.negated(part)
            except Inexpressible:
                if is_exact:
                    raise
                continue
            if opposite is not False:
                yield {"type": "object", "required": [name], "properties": {name: opposite}}


def _asserted(schema: Any) -> list[str]:
    if not isinstance(schema, dict) or NARROWED in schema:
        raise Inexpressible
    return [name for name in schema if name in KEYWORDS]


def _other_types(names: list[Any], types: frozenset[str]) -> Iterator[Schema]:
    if "integer" in names and "number" not in names and "number" in types:
        raise Inexpressible
    left = types - {"number" if kind == "integer" else kind for kind in names}
    if left:
        yield {"type": sorted(left)}


def _other_values(values: list[Any], types: frozenset[str]) -> Iterator[Schema]:
    """Yield schemas of all values of these types except the given ones."""
    for kind in sorted(types):
        same = [value for value in values if kind_of(value) == kind]
        if not same:
            yield {"type": kind}
        elif kind in ("object", "array"):
            raise Inexpressible
        elif kind == "boolean":
            yield from ({"enum": [value]} for value in (True, False) if value not in same)  # draft 4 has no const
        elif kind == "number":
            yield from _other_numbers([value for value, _ in itertools.groupby(sorted(same))])
        elif kind == "string":
            yield {"type": "string", "pattern": f"^{_other_texts(sorted(set(same)))}$"}


def _other_numbers(values: list[float]) -> Iterator[Schema]:
    bounds = [None, *values, None]
    for above, below in itertools.pairwise(bounds):
        limits = {"exclusiveMinimum": above, "exclusiveMaximum": below}
        yield {"type": "number", **{name: limit for name, limit in limits.items() if limit is not None}}


def _other_texts(texts: list[str]) -> str:
    """Return a regex of every text except these: by their first characters, then what may follow each."""
    rests: dict[str, list[str]] = {}
    for text in texts:
        if text:
            rests.setdefault(text[0], []).append(text[1:])
    first_ones = "".join(map(_in_regex, rests))
    parts = [f"{_in_regex(first)}{_other_texts(rest)}" for first, rest in rests.items()]
    parts.append(rf"[^{first_ones}][\s\S]*" if first_ones else r"[\s\S]+")
    return f"({'|'.join(parts)}){'' if '' in texts else '?'}"


def _in_regex(character: str) -> str:
    is_plain = character.isascii() and character.isalnum()
    return character if is_plain or ord(character) > 0xFFFF else f"\\u{ord(character):04x}"


def _other_bounds(keyword: str, schema: Schema, types: frozenset[str]) -> list[Any]:
    value = schema[keyword]
    if keyword in _LEAST:
        kind, opposite = _LEAST[keyword]
        return [{"type": kind, opposite: value - 1}] if value > 0 and kind in types else []
    if keyword in _MOST:
        kind, opposite = _MOST[keyword]
        return [{"type": kind, opposite: value + 1}] if kind in types else []
    if keyword in _OPPOSITE_BOUNDS:
        exclusive, open_, closed = _OPPOSITE_BOUNDS[keyword]
        if isinstance(value, bool) or "number" not in types:
            return []  # draft 4's keyword is handled with the bound that it belongs to
        is_open = not keyword.startswith("exclusive") and schema.get(exclusive) is not True
        return [{"type": "number", open_ if is_open else closed: value}]
    if value is True and keyword in ("items", "additionalItems"):
        return []
    if value in ({}, []) and keyword != "contains":
        return []
    raise Inexpressible


_OPPOSITE_BOUNDS = {
    "minimum": ("exclusiveMinimum", "exclusiveMaximum", "maximum"),
    "maximum": ("exclusiveMaximum", "exclusiveMinimum", "minimum"),
    "exclusiveMinimum": ("", "", "maximum"),
    "exclusiveMaximum": ("", "", "minimum"),
}
