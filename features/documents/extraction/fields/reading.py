"""Reads a JSON schema into leaves; refuses unsupported schemas with a path and an explanation.

Annotations without meaning for validation (`title`, `examples`, `$comment` …) are accepted and never shown to a model.
Everything else that is not supported is refused, since ignoring it would silently lose fields.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any, NoReturn

from features.documents.extraction.errors import SchemaError
from features.documents.extraction.fields.annotations import Annotations, read_annotations
from features.documents.extraction.fields.expression_parser import parse_expression
from features.documents.extraction.fields.expressions import Expression
from features.documents.extraction.fields.leaf import Leaf, LeafType, Metric
from features.documents.extraction.fields.paths import ITEM, Path
from features.documents.extraction.fields.shapes import Container

MAX_LEAVES = 2_000
MAX_DEPTH = 16
"""Nesting of objects and arrays."""

_IDLE = {
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "definitions",
    "deprecated",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
}
_COMMON = _IDLE | {"type", "description", "default", "x-tokenmill"}
_OF_VALUES = _COMMON | {"enum", "const", "x-derived"}
_KEYWORDS = {
    "object": _COMMON | {"properties", "required", "additionalProperties"},
    "array": _COMMON | {"items", "minItems", "maxItems", "x-derived"},
    "string": _OF_VALUES | {"format", "pattern", "minLength", "maxLength"},
    "number": _OF_VALUES | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": _OF_VALUES,
}
_KEYWORDS["integer"] = _KEYWORDS["number"]
_VALUE_KEYWORDS = {
    *("type", "format", "pattern", "minLength", "maxLength"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_FORMATS_OF_VALIDATORS = {"date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
_LEADING = ("$ref", "anyOf", "oneOf", "allOf")
"""Keywords that lead to the schema of a field."""
_NOT_IN_NAMES = ".[]"
_UNWRITABLE = {"Cc", "Cs"}
"""Unicode categories of control characters such as NUL, and of halves of surrogate pairs."""


def read_schema(
    schema: Mapping[str, Any],
) -> tuple[tuple[Leaf, ...], dict[Path, Container], tuple[Expression, ...]]:
    """Return the leaves, the containers by path and the checks. Raises SchemaError."""
    walk = _Walk(schema)
    walk.read(schema, (), ())
    leaves = tuple(walk.leaves)
    return (
        leaves,
        walk.containers,
        tuple(parse_expression(text, {leaf.path for leaf in leaves}) for text in walk.checks),
    )


class _Walk:
    """One pass over a schema that collects its leaves and containers."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.leaves: list[Leaf] = []
        self.containers: dict[Path, Container] = {}
        self.checks: tuple[str, ...] = ()

    def read(self, node: Any, path: Path, refs: tuple[str, ...]) -> None:
        node, nullable, refs = self._resolve(node, path, refs)
        kind, nullable_by_type = _type_of(node, path)
        if not path and kind != "object":
            raise SchemaError(f"The schema is of type {kind}; its root must be an object with `properties`.")
        _check_keywords(node, kind, path)
        if kind == "object":
            self._read_object(node, path, refs)
        elif kind == "array":
            self._read_array(node, path, refs)
        else:
            self._add(_leaf(node, kind, path, nullable=nullable or nullable_by_type))

    def _read_object(self, node: Mapping[str, Any], path: Path, refs: tuple[str, ...]) -> None:
        properties = node.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            _refuse(path, "an object without `properties` asks for nothing. Name its fields")
        if len(path) >= MAX_DEPTH:
            _refuse(path, f"nested deeper than {MAX_DEPTH} levels")
        annotations = read_annotations(node, path, {"checks"} if not path else set())
        self.checks = annotations.checks or self.checks
        self._contain(node, path)
        for name, inner in properties.items():
            _check_name(name, path)
            self.read(inner, (*path, name), refs)

    def _read_array(self, node: Mapping[str, Any], path: Path, refs: tuple[str, ...]) -> None:
        if not isinstance(items := node.get("items"), Mapping):
            _refuse(path, "an array must have `items`, one schema for what it holds")
        if path[-1] == ITEM:
            _refuse(path, "arrays of arrays are not supported. Put an object between them")
        inner, _, _ = self._resolve(items, (*path, ITEM), refs)
        is_scalar = _type_of(inner, path)[0] not in ("object", "array")
        own = {name: node[name] for name in ("x-tokenmill", "x-derived") if name in node}
        if own and not is_scalar:
            _refuse(path, f"`{next(iter(own))}` belongs to the fields of an array's objects, not to the array")
        self._contain(node, path)
        described = {"description": node["description"]} if "description" in node else {}
        extra = own | (described if is_scalar else {})
        self.read({**extra, **items}, (*path, ITEM), refs)

    def _contain(self, node: Mapping[str, Any], path: Path) -> None:
        max_items = node.get("maxItems")
        if max_items is not None and (type(max_items) is not int or max_items < 1):
            _refuse(path, f"`maxItems` is {max_items!r}; it must be a number from 1 on")
        self.containers[path] = Container(description=_description(node, path), max_items=max_items)

    def _add(self, leaf: Leaf) -> None:
        self.leaves.append(leaf)
        if len(self.leaves) > MAX_LEAVES:
            raise SchemaError(f"The schema has over {MAX_LEAVES:,} fields. Ask for fewer, or in several schemas.")

    def _resolve(self, node: Any, path: Path, refs: tuple[str, ...]) -> tuple[Mapping[str, Any], bool, tuple[str, ...]]:
        """Return a node with `$ref` and `anyOf` with null resolved, whether null is allowed, and the refs followed."""
        nullable = False
        while True:
            if not isinstance(node, Mapping):
                _refuse(path, f"{node!r} is no schema; it must be an object")
            leading = [key for key in _LEADING if key in node]
            if len(leading) > 1:
                _refuse(path, f"`{leading[0]}` and `{leading[1]}` are both given. Keep one of them")
            beside = {key: value for key, value in node.items() if key not in _LEADING}
            if "$ref" in node:
                if node["$ref"] in refs:
                    _refuse(path, f"`$ref` {node['$ref']} leads back to itself; a schema must be finite")
                refs = (*refs, node["$ref"])
                node = {**self._target(node["$ref"], path), **beside}
            elif leading:
                only, has_null = _only_branch(node[leading[0]], leading[0], path)
                nullable = nullable or has_null
                node = {**only, **beside}
            else:
                return node, nullable, refs

    def _target(self, ref: Any, path: Path) -> Mapping[str, Any]:
        if not isinstance(ref, str) or not ref.startswith("#/"):
            _refuse(path, f"`$ref` {ref!r} leads out of the schema. Only `#/$defs/…` is followed")
        target: Any = self._root
        for part in ref.removeprefix("#/").split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or name not in target:
                _refuse(path, f"`$ref` {ref} leads nowhere")
            target = target[name]
        if not isinstance(target, Mapping):
            _refuse(path, f"`$ref` {ref} leads to no schema")
        return target


def _only_branch(branches: Any, keyword: str, path: Path) -> tuple[Mapping[str, Any], bool]:
    """Return the only branch that is not null, and whether there is a null branch."""
    if not isinstance(branches, list) or not all(isinstance(branch, Mapping) for branch in branches):
        _refuse(path, f"`{keyword}` must be a list of schemas")
    others = [branch for branch in branches if branch.get("type") != "null"]
    if keyword != "allOf" and [branch.get("type") for branch in others] == ["number", "string"]:
        others = others[:1]  # a Decimal of pydantic: a number fits it
    if len(others) != 1 or (keyword == "allOf" and len(branches) != 1):
        _refuse(path, f"`{keyword}` may have one schema, optionally with null; here it allows several shapes")
    return others[0], any(branch.get("type") == "null" for branch in branches)


def _type_of(node: Mapping[str, Any], path: Path) -> tuple[str, bool]:
    """Return a node's type other than null, and whether its type or values allow null."""
    declared = node.get("type")
    if declared is None:
        declared = _implied_type(node)
    types = declared if isinstance(declared, list) else [declared]
    others = [name for name in types if name != "null"]
    if len(others) != 1 or others[0] not in _KEYWORDS:
        _refuse(path, f"`type` is {declared!r}; give one of {', '.join(_KEYWORDS)}, or it and null")
    values = node.get("enum")
    return others[0], len(types) > 1 or (isinstance(values, list) and None in values)


def _implied_type(node: Mapping[str, Any]) -> Any:
    if "properties" in node:
        return "object"
    if "items" in node:
        return "array"
    values = [node["const"]] if "const" in node else node.get("enum")
    if not isinstance(values, list):
        return None
    names = {_JSON_NAMES.get(type(value)) for value in values if value is not None}
    return names.pop() if len(names) == 1 else None


_JSON_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def _check_keywords(node: Mapping[str, Any], kind: str, path: Path) -> None:
    if unknown := sorted(set(node) - _KEYWORDS[kind]):
        _refuse(
            path, f"`{unknown[0]}` is not understood in a schema of type {kind}. Leave it out, or say it as a check"
        )
    if node.get("additionalProperties", False) is not False:
        _refuse(path, "`additionalProperties` must be false or left out: only named fields can be asked for")
    if node.get("minItems") not in (None, 0):
        _refuse(
            path, "`minItems` would make up items that a document lacks. Leave it out, or say `len(…) >= 1` as a check"
        )


def _check_name(name: str, path: Path) -> None:
    if any(unicodedata.category(sign) in _UNWRITABLE for sign in name):
        _refuse(path, f"the name {name!r} has a control character, or half a surrogate pair, which cannot be stored")
    if not name or name == ITEM or any(sign in name for sign in _NOT_IN_NAMES):
        _refuse(
            (*path, name), f"the name {name!r} is ambiguous in a path; it must not contain {_NOT_IN_NAMES}, nor be *"
        )


def _leaf(node: Mapping[str, Any], kind: str, path: Path, *, nullable: bool) -> Leaf:
    annotations = read_annotations(node, path, Annotations.OF_A_LEAF)
    values = _enum(node, kind, path)
    if annotations.key and (ITEM not in path or path[-1] == ITEM):
        _refuse(path, "`key` belongs to a field of an array's objects, whose items it identifies")
    schema = {key: value for key, value in node.items() if key in _VALUE_KEYWORDS}
    schema["type"] = kind
    if schema.get("format") not in _FORMATS_OF_VALIDATORS:
        schema.pop("format", None)
    type_ = LeafType(kind)
    metric = annotations.metric or _metric(node, type_, path, has_choice=values is not None)
    return Leaf(
        path=path,
        type=type_,
        format=node.get("format"),
        enum=values,
        nullable=nullable,
        description=_description(node, path),
        metric=_checked_metric(metric, type_, path),
        ground=annotations.ground if annotations.ground is not None else type_ is not LeafType.BOOLEAN,
        key=annotations.key,
        required_for_auto=annotations.required_for_auto,
        weight=annotations.weight,
        schema=schema,
    )


def _enum(node: Mapping[str, Any], kind: str, path: Path) -> tuple[Any, ...] | None:
    values = [node["const"]] if "const" in node else node.get("enum")
    if values is None:
        return None
    chosen = tuple(value for value in values if value is not None) if isinstance(values, list) else ()
    if not chosen:
        _refuse(path, "`enum` must be a list with at least one value, and `const` a value")
    for value in chosen:
        if kind != _JSON_NAMES.get(type(value)) and (kind, type(value)) != ("number", int):
            _refuse(path, f"{value!r} is one of its values but not of its type, {kind}")
    return chosen


def _metric(node: Mapping[str, Any], type_: LeafType, path: Path, *, has_choice: bool) -> Metric:
    if type_ is LeafType.STRING and node.get("format") in ("date", "date-time"):
        return Metric.DATE
    if path[-1] == ITEM:
        return Metric.SET
    return Metric.ANLS if type_ is LeafType.STRING and not has_choice else Metric.EXACT


def _checked_metric(metric: Metric, type_: LeafType, path: Path) -> Metric:
    if metric is Metric.SET and path[-1] != ITEM:
        _refuse(path, "`metric` is set, which is for arrays of plain values")
    if metric in (Metric.DATE, Metric.ANLS) and type_ is not LeafType.STRING:
        _refuse(path, f"`metric` is {metric.value}, which is for fields of type string; this one is {type_.value}")
    if metric is Metric.MONEY and type_ is LeafType.BOOLEAN:
        _refuse(path, "`metric` is money, which is for numbers and texts")
    return metric


def _description(node: Mapping[str, Any], path: Path) -> str:
    text = node.get("description", "")
    if not isinstance(text, str):
        _refuse(path, "`description` must be a text")
    return " ".join(text.split())


def _refuse(path: Path, message: str) -> NoReturn:
    raise SchemaError(f"{message}.", path)
