"""Rewrite keywords that llguidance lacks with those that it has: not, if, dependencies, propertyNames, oneOf.

The result allows the same values or, for `oneOf`, fewer: a property of the other branches is then absent instead of
having a wrong value. A keyword that cannot be rewritten is kept, to be refused by its name.
"""

from __future__ import annotations

import re
from typing import Any

from engine.grammars.json_schema import KEYWORDS, NARROWED, Schema, close_bounds, replace_keywords, schemas_in
from engine.grammars.meaning import TYPES, Inexpressible
from engine.grammars.negation import Negation

_DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")


_SINCE = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "prefixItems"), 2019),
}
"""The draft of JSON Schema that introduced a keyword; in earlier ones it constrains nothing."""

_ANNOTATIONS = frozenset(
    {"$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)


def with_equivalents(root: Schema) -> Schema | None:
    """Rewrite a schema's keywords where possible; change and return it. Return None if it must not be used.

    A schema with keywords newer than the draft that it names is not rewritten: readers would disagree on its opposite.
    And a remaining `oneOf` must not stand beside a narrowed schema: overlapping branches might seem disjoint.
    """
    schemas = schemas_in(root)
    draft = _draft_of(root)
    if draft is not None and any(_SINCE.get(keyword, 0) > draft for schema in schemas for keyword in schema):
        return None
    negation = Negation(root)
    _write(schemas, negation)
    close_bounds(root)
    left = schemas_in(root)
    is_narrowed = any(NARROWED in schema for schema in left)
    return None if is_narrowed and any("oneOf" in schema for schema in left) else root


def clear_references(root: Schema) -> bool:
    """Drop keywords beside references that constrain nothing; return whether there were any.

    llguidance refuses any beside a circular reference. Up to draft 7 all of them are ignored (Core 8.3). Others than
    keywords may be targets of references.
    """
    draft = _draft_of(root)
    idle = _ANNOTATIONS | (KEYWORDS - {"$ref"} if draft is not None and draft < 2019 else set())
    has_idle = False
    for schema in schemas_in(root):
        if isinstance(schema.get("$ref"), str):
            for name in idle & schema.keys():
                del schema[name]
                has_idle = True
    return has_idle


def _draft_of(root: Schema) -> int | None:
    """Return the draft of JSON Schema that a schema names: 4, 6, 7, 2019 or 2020."""
    named = re.search(r"draft-?0?(\d{1,4})", str(root.get("$schema")))
    return None if named is None else int(named[1])


def _write(schemas: list[Schema], negation: Negation) -> None:
    for schema in reversed(schemas):  # inner ones first: a negated schema has then been rewritten
        negation.place = schema
        for write in (_not, _if, _dependencies, _property_names, _least_one_property, _one_of):
            try:
                write(schema, negation)
            except (Inexpressible, RecursionError):
                continue
            except (AttributeError, KeyError, TypeError, ValueError):
                return  # no JSON schema: llguidance reports the error


def _not(schema: Schema, negation: Negation) -> None:
    if "not" not in schema:
        return
    opposite = negation.negated(schema["not"], **_scope(schema, {"not"}, negation))
    replace_keywords(schema, {"not"}, opposite if isinstance(opposite, dict) else {"allOf": [opposite]})


def _if(schema: Schema, negation: Negation) -> None:
    if "if" not in schema:
        return
    names = {"if", "then", "else"}
    condition, then, else_ = schema["if"], schema.get("then", True), schema.get("else", True)
    opposite = negation.negated(condition, **_scope(schema, names, negation))
    replace_keywords(schema, names & schema.keys(), {"anyOf": [_all(condition, then), _all(opposite, else_)]})


def _dependencies(schema: Schema, _: Negation) -> None:
    names = {name for name in _DEPENDENCIES if isinstance(schema.get(name), dict)}
    dependencies = [
        (name, needed) for keyword in _DEPENDENCIES if keyword in names for name, needed in schema[keyword].items()
    ]
    if names:
        choices = [{"anyOf": [_absent(name), _with(name, needed)]} for name, needed in dependencies]
        replace_keywords(schema, names, {"allOf": choices} if choices else {})


def _property_names(schema: Schema, negation: Negation) -> None:
    allowed = schema.get("propertyNames")
    if allowed is None or not isinstance(allowed, dict) or schema.get("patternProperties"):
        return
    kept = {key: value for key, value in allowed.items() if key not in ("type", "title", "description", "$comment")}
    if allowed.get("type", "string") != "string" or len(kept) > 1:
        return
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    written: Schema
    if not kept:
        written = {}
    elif isinstance(names := kept.get("enum", [kept["const"]] if "const" in kept else None), list):
        texts = [name for name in names if isinstance(name, str)]
        negation.count_copies(rest, len(texts))
        known = {name: part if name in texts else False for name, part in properties.items()}
        written = {"properties": {**known, **{name: rest for name in texts if name not in known}}}
        written["additionalProperties"] = False
    elif "pattern" in kept and not properties:
        written = {"patternProperties": {kept["pattern"]: rest}, "additionalProperties": False}
    else:
        return
    del schema["propertyNames"]
    schema.update(written)


def _least_one_property(schema: Schema, _: Negation) -> None:
    """Replace minProperties 1 by a choice of the property; llguidance counts only others than the named ones."""
    properties = schema.get("properties")
    if schema.get("minProperties") != 1 or "maxProperties" in schema or not properties:
        return
    if set(properties) & set(schema.get("required", [])) or schema.get("patternProperties"):
        return
    others = {"properties": dict.fromkeys(properties, False), "minProperties": 1}
    choices = [*({"required": [name]} for name in properties), others]
    replace_keywords(schema, {"minProperties"}, {"anyOf": choices})


def _one_of(schema: Schema, negation: Negation) -> None:
    if not isinstance(schema.get("oneOf"), list):
        return
    branches = schema["oneOf"]
    around = {key: value for key, value in schema.items() if key != "oneOf"}
    written, is_narrowed = [], False
    for index, branch in enumerate(branches):
        others = [other for place, other in enumerate(branches) if place != index]
        with_around = {"allOf": [around, branch]}
        overlapping = [other for other in others if not negation.are_disjoint(with_around, other)]
        scope = _scope(with_around, set(), negation)
        opposites = [negation.negated(other, **scope, is_exact=False) for other in overlapping]
        is_narrowed = is_narrowed or bool(opposites)
        written.append(_all(branch, *opposites) if opposites else branch)
    replace_keywords(schema, {"oneOf"}, {"anyOf": written} | ({NARROWED: True} if is_narrowed else {}))


def _scope(schema: Schema, without: set[str], negation: Negation) -> dict[str, Any]:
    """Return what is known of a schema's values without some of its keywords."""
    rest = {key: value for key, value in schema.items() if key not in without}
    return {"types": negation.types_of(rest) or TYPES, "names": negation.names_of(rest)}


def _all(*schemas: Any) -> Any:
    asking = [schema for schema in schemas if schema is not True and schema != {}]
    return asking[0] if len(asking) == 1 else {"allOf": asking} if asking else True


def _absent(name: str) -> Schema:
    return {"properties": {name: False}}


def _with(name: str, needed: Any) -> Schema:
    if isinstance(needed, list | str):
        return {"required": list(dict.fromkeys([name, *([needed] if isinstance(needed, str) else needed)]))}
    return {"allOf": [{"required": [name]}, needed]}
