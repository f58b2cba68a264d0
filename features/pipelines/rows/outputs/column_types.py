"""The columns of an answer's JSON schema and their types.

It only reads the schema; whether it can be enforced is checked elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from jobs.errors import InputError

_MAX_LEVELS = 32
_TYPES = ("string", "integer", "number", "boolean", "array", "object")


class Kind(StrEnum):
    """The type of a value, in the words of JSON Schema."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ARRAY = "array"
    OBJECT = "object"
    ANY = "any"
    """Several types, or not specified by the schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """The type of a column's values; each may also be null."""

    kind: Kind
    place: str
    """Its place in the schema, such as `$.properties.total`."""
    item: ColumnType | None = None
    """Type of an array's items."""
    fields: Mapping[str, ColumnType] | None = None
    """Types of an object's fields, in the schema's order."""
    problem: str = ""
    """For `any`: why it has no single type."""
    values: Sequence[Any] | None = None
    """The values that the schema allows, if it lists them."""


def answer_columns(schema: Any) -> dict[str, ColumnType]:
    """Return the columns of an answer, by name in the schema's order. Raise InputError with the place."""
    if not isinstance(schema, dict):
        raise _refused("$", f"it is {_name(schema)}, and a JSON schema is an object")
    whole = _type_of(schema, schema, place="$", level=0)
    if whole.kind is not Kind.OBJECT:
        raise _refused(
            "$", f'an answer becomes columns, so its schema needs "type": "object", and not {whole.kind.value}'
        )
    if not whole.fields:
        raise _refused("$.properties", "it names no property, and each property becomes a column")
    return dict(whole.fields)


def require_narrow(columns: Mapping[str, ColumnType]) -> None:
    """Raise InputError with the place of a column without a single type, which Parquet requires."""
    for column in columns.values():
        if column.kind is Kind.ANY:
            raise InputError(
                f"the schema is too wide for Parquet, where a column has one type: at {column.place}, "
                f"{column.problem}. Narrow it, or write JSONL.",
                param="schema",
                code="invalid_schema",
            )
        if column.kind is Kind.OBJECT and not column.fields:
            raise InputError(
                f"the schema cannot be written as Parquet: at {column.place}, the object has no properties.",
                param="schema",
                code="invalid_schema",
            )
        require_narrow(column.fields or ({} if column.item is None else {"": column.item}))


def _refused(place: str, problem: str) -> InputError:
    return InputError(f"the schema cannot be used: at {place}, {problem}.", param="schema", code="invalid_schema")


def _name(value: Any) -> str:
    return {list: "an array", str: "a text", bool: "a truth value", type(None): "null"}.get(type(value), "a number")


def _type_of(schema: Any, root: Mapping[str, Any], *, place: str, level: int) -> ColumnType:
    if level > _MAX_LEVELS:
        return _any(place, f"it is nested in more than {_MAX_LEVELS} levels, or in itself")
    if schema is True or schema == {}:
        return _any(place, "it may be anything")
    if not isinstance(schema, dict):
        raise _refused(place, f"it is {_name(schema)}, and a JSON schema is an object")
    if (other := _instead_of(schema, root, place=place)) is not None:
        return _type_of(other, root, place=place, level=level + 1)
    return _plain_type_of(schema, root, place=place, level=level)


def _instead_of(schema: Mapping[str, Any], root: Mapping[str, Any], *, place: str) -> Any:
    """Return the schema that this one refers to: by `$ref`, or by the `allOf` in which pydantic wraps a `$ref`."""
    if "$ref" in schema:
        return _referred(schema["$ref"], root, place=place)
    whole = schema.get("allOf")
    return whole[0] if isinstance(whole, list) and len(whole) == 1 else None


def _plain_type_of(schema: Mapping[str, Any], root: Mapping[str, Any], *, place: str, level: int) -> ColumnType:
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return _one_of(_list(schema[word], f"{place}.{word}"), root, place=f"{place}.{word}", level=level)
    if "enum" in schema or "const" in schema:
        values = _list(schema["enum"], f"{place}.enum") if "enum" in schema else [schema["const"]]
        return _of_values(values, place=place)
    return _typed(schema, root, place=place, level=level)


def _list(value: Any, place: str) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise _refused(place, "it must be a list of at least one")
    return value


def _referred(reference: Any, root: Mapping[str, Any], *, place: str) -> Any:
    target: Any = root
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise _refused(f"{place}.$ref", f"{reference!r} is not a place in this schema; use one such as #/$defs/Item")
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or name not in target:
            raise _refused(f"{place}.$ref", f"there is no {reference} in this schema")
        target = target[name]
    return target


def _one_of(schemas: Sequence[Any], root: Mapping[str, Any], *, place: str, level: int) -> ColumnType:
    parts = [part for part in schemas if part != {"type": "null"}]
    types = [_type_of(part, root, place=f"{place}[{schemas.index(part)}]", level=level + 1) for part in parts]
    if len(types) == 1:
        return types[0]
    return _joined([one.kind for one in types], types[0], place=place)


def _joined(kinds: Sequence[Kind], first: ColumnType | None, *, place: str) -> ColumnType:
    """Return the common type of several plain types, if there is one."""
    distinct = set(kinds)
    if distinct == {Kind.INTEGER, Kind.NUMBER}:
        return ColumnType(kind=Kind.NUMBER, place=place)
    if len(distinct) == 1 and (first is None or (first.item is None and first.fields is None)):
        return ColumnType(kind=distinct.pop(), place=place)
    return _any(place, f"it may be {' or '.join(sorted({kind.value for kind in kinds})) or 'only null'}")


def _of_values(values: Sequence[Any], *, place: str) -> ColumnType:
    kinds = [_kind_of(value) for value in values if value is not None]
    return replace(_joined(kinds, None, place=place), values=tuple(values))


def _kind_of(value: Any) -> Kind:
    kinds = {bool: Kind.BOOLEAN, int: Kind.INTEGER, float: Kind.NUMBER, str: Kind.STRING}
    return kinds.get(type(value), Kind.ANY)


def _typed(schema: Mapping[str, Any], root: Mapping[str, Any], *, place: str, level: int) -> ColumnType:
    declared = schema.get("type", "object" if "properties" in schema else None)
    names = [name for name in (declared if isinstance(declared, list) else [declared]) if name != "null"]
    if declared is None:
        return _any(place, "it has no type")
    if unknown := [name for name in names if name not in _TYPES]:
        raise _refused(f"{place}.type", f"{unknown[0]!r} is not a type; allowed are {', '.join(_TYPES)} and null")
    kinds = [Kind(name) for name in names]
    if kinds == [Kind.ARRAY]:
        return _array(schema, root, place=place, level=level)
    if kinds == [Kind.OBJECT]:
        return _object(schema, root, place=place, level=level)
    if Kind.ARRAY in kinds or Kind.OBJECT in kinds:
        return _any(place, f"it may be {' or '.join(names)}")
    return _joined(kinds, None, place=place)


def _array(schema: Mapping[str, Any], root: Mapping[str, Any], *, place: str, level: int) -> ColumnType:
    item = _type_of(schema.get("items", True), root, place=f"{place}.items", level=level + 1)
    return ColumnType(kind=Kind.ARRAY, place=place, item=item)


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], *, place: str, level: int) -> ColumnType:
    properties = schema.get("properties")
    if properties is None:
        return _any(place, "it is an object of any properties") if level else ColumnType(kind=Kind.OBJECT, place=place)
    if not isinstance(properties, dict):
        raise _refused(f"{place}.properties", "it must be an object")
    fields = {
        name: _type_of(part, root, place=f"{place}.properties.{name}", level=level + 1)
        for name, part in properties.items()
    }
    return ColumnType(kind=Kind.OBJECT, place=place, fields=fields)


def _any(place: str, problem: str) -> ColumnType:
    return ColumnType(kind=Kind.ANY, place=place, problem=problem)
