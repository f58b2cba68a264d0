"""Find the schemas in a JSON schema, and rewrite them in keywords that llguidance supports, with the same meaning.

Pure: parsed JSON in, parsed JSON out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from engine.grammars.look_ahead import without_look_ahead

Schema = dict[str, Any]

_ONE = frozenset({"additionalItems", "additionalProperties", "contains", "contentSchema", "items", "propertyNames"})
_ONE |= {"else", "if", "not", "then", "unevaluatedItems", "unevaluatedProperties"}
"""Keywords whose value is a schema."""
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
"""Keywords whose value may be a list of schemas."""
_NAMED = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
"""Keywords whose value maps names to schemas; a "format" among the names is no keyword."""

_COUNTS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})

KEYWORDS = (_ONE | _SEVERAL | _NAMED) - {"$defs", "definitions", "contentSchema"} | {
    *("$dynamicRef", "$recursiveRef", "$ref", "const", "dependentRequired", "enum", "exclusiveMaximum"),
    *("exclusiveMinimum", "format", "maxContains", "maximum", "maxItems", "maxLength", "maxProperties", "minContains"),
    *("minimum", "minItems", "minLength", "minProperties", "multipleOf", "pattern", "required", "type", "uniqueItems"),
}
"""Keywords that may refuse a value, in any draft."""


NARROWED = "x-narrowed"
"""Marks a schema that allows less than the user's: its opposite would allow more."""

_LEAST_FRACTION = 1e-15
"""Replaces the number next to 0, whose hundreds of digits no regex holds."""

_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = f"^([0-9]{{4}}-(0[13-9]|1|02-([01]|2[0-8]))|{_LEAP_YEAR}-02-29)"
_CLOSER_PATTERNS = {
    "date": [_DATE],
    "date-time": [_DATE, "^.{17}[0-5]"],
    "time": ["^.{6}[0-5]"],
    "email": [r"^[^@]{1,64}@([^.]{1,63}\.)*[^.]{1,63}$"],
}
"""Patterns for formats that validators check more strictly than llguidance 1.9.1.

29 February only in leap years; no second 60, which RFC 3339 allows only for leap seconds; at most 64 characters before
the @ and 63 in a label after it (RFC 5321 4.5.3.1, RFC 1035 2.3.4).
"""


def without_idle_keywords(text: str, *, is_kept_format: Callable[[str], bool], one_of_as_any_of: bool) -> Schema:
    """Return a schema without keywords that constrain nothing, which llguidance would refuse.

    An unknown `format` is an annotation (JSON Schema 2020-12, Validation 7.2.1). `one_of_as_any_of` treats `oneOf` as
    `anyOf`, which allows more.
    """
    root: Schema = json.loads(text)
    for schema in schemas_in(root):
        for keyword in _COUNTS & schema.keys():
            if isinstance(count := schema[keyword], float) and count.is_integer():
                schema[keyword] = int(count)  # 2.0 is an integer in JSON, and llguidance refuses it
        if _is_idle_unique_items(schema):
            del schema["uniqueItems"]
        if isinstance(name := schema.get("format"), str) and not is_kept_format(name):
            del schema["format"]
        elif isinstance(name, str) and _may_be_closer(name, schema):
            schema["allOf"] = [*schema.get("allOf", []), *({"pattern": pattern} for pattern in _CLOSER_PATTERNS[name])]
        _replace_look_ahead(schema)
        if one_of_as_any_of and "oneOf" in schema:
            replace_keywords(schema, {"oneOf"}, {"anyOf": schema["oneOf"]})
    close_bounds(root)
    return root


def _replace_look_ahead(schema: Schema) -> None:
    pattern, together = schema.get("pattern"), schema.get("allOf", [])
    if isinstance(pattern, str) and isinstance(together, list) and (written := without_look_ahead(pattern)):
        schema["pattern"] = written[0]
        schema["allOf"] = [*together, *({"pattern": each} for each in written[1:])]


def close_bounds(root: Schema) -> None:
    """Turn exclusive integer bounds into inclusive ones next to them if the other bound is a fraction.

    Between n, exclusive, and a fraction below n + 1 llguidance 1.9.1 accepts n; likewise between negative ones. The two
    may be in different schemas of one document.
    """
    schemas = schemas_in(root)
    for most, least, towards, rounded in (("Maximum", "Minimum", 1, math.floor), ("Minimum", "Maximum", -1, math.ceil)):
        names = (most.lower(), f"exclusive{most}")
        others = {rounded(bound) for schema in schemas for name in names if _is_fraction(bound := schema.get(name, 0))}
        for schema in schemas:
            bound = schema.get(f"exclusive{least}")
            if bound is True:  # draft 4
                bound = schema.get(least.lower())
            if isinstance(bound, int | float) and not isinstance(bound, bool) and bound in others:
                _close(schema, least, bound, towards)


def _close(schema: Schema, least: str, bound: float, towards: int) -> None:
    inside = math.nextafter(bound, bound + towards) if bound else towards * _LEAST_FRACTION
    nearer = max if towards > 0 else min
    limit = schema.get(least.lower(), inside)
    if not isinstance(limit, int | float):
        return  # no JSON schema: llguidance reports the error
    del schema[f"exclusive{least}"]
    schema[least.lower()] = nearer(limit, inside)
    if not bound:
        schema[NARROWED] = True


def _is_fraction(bound: Any) -> bool:
    return isinstance(bound, float) and math.isfinite(bound) and not bound.is_integer()


def _may_be_closer(name: str, schema: Schema) -> bool:
    return name in _CLOSER_PATTERNS and "pattern" not in schema and isinstance(schema.get("allOf", []), list)


def schemas_in(root: Schema) -> list[Schema]:
    """Return every schema object in a schema, itself first, outer ones before inner ones.

    They are the values of keywords, and targets of references within the document.
    """
    schemas: list[Schema] = []
    seen: set[int] = set()
    left: list[Any] = [root]
    references: list[str] = []
    while left:
        schema = left.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        schemas.append(schema)
        left += reversed(list(_inner(schema)))
        references += [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
        if not left:
            left = [target_of(root, reference) for reference in references]
            references.clear()
    return schemas


def target_of(root: Schema, reference: str) -> Any:
    """Return the target of a reference within the document, None if there is none."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    target: Any = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isdecimal() and len(name) < 9 and int(name) < len(target):
            target = target[int(name)]
        elif isinstance(target, dict):
            target = target.get(name)
        else:
            return None
    return target


def replace_keywords(schema: Schema, names: set[str], added: Schema) -> None:
    """Replace keywords by others at the same place, which may determine the order of properties."""
    if not isinstance(schema.get("allOf", []), list):
        return  # no JSON schema: llguidance reports the error
    places = [name for name in schema if name in names]
    if added.keys() & (schema.keys() - names):
        together = [*schema.get("allOf", []), added]
        added, names = {"allOf": together}, {*names, "allOf"}
    items = list(schema.items())
    schema.clear()
    for name, value in items:
        if name == places[0]:
            schema.update(added)
        elif name not in names:
            schema[name] = value


def _inner(schema: Schema) -> Iterator[Any]:
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, dict):
            yield from value.values()
        elif name in _SEVERAL and isinstance(value, list):
            yield from value
        elif name in _ONE:
            yield value


def _is_idle_unique_items(schema: Schema) -> bool:
    if "uniqueItems" not in schema:
        return False
    max_items = schema.get("maxItems")
    return schema["uniqueItems"] is False or (type(max_items) is int and max_items <= 1) or not may_be(schema, "array")


def may_be(schema: Schema, kind: str) -> bool:
    """Tell whether a schema's own `type` allows values of a JSON type."""
    types = schema.get("type")
    return types == kind or not isinstance(types, str | list) or (isinstance(types, list) and kind in types)
