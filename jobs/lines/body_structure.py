"""Checks of structured outputs: `response_format`, and vLLM's `structured_outputs` and `guided_…`.

Pure; the worker asks the grammar library whether it supports a schema or grammar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jobs.lines.body_checks import BodyError, Check, flag, object_, refuse_unknown, text, unsupported, wrong

ONE_OF_AS_ANY_OF = "one_of_as_any_of"
"""Parameter that says that `oneOf`, in schemas of the output and of tools, is treated as `anyOf`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Constraint on the text."""

    param: str
    """The parameter named in errors."""
    fields: Mapping[str, Any]
    """One constraint, under its name in `engine.StructuredOutput`."""


def response_format(name: str, value: Any) -> Structure | None:
    """Parse OpenAI's three kinds; "text" means no constraint."""
    kind = object_(name, value).get("type")
    if kind == "json_schema":
        refuse_unknown(name, value, {"type", "json_schema"})
        return _json_schema(f"{name}.json_schema", value.get("json_schema"))
    refuse_unknown(name, value, {"type"})
    if kind == "json_object":
        return Structure(param=name, fields={"json_object": True})
    if kind != "text":
        raise wrong(f"{name}.type", kind, '"text", "json_object" or "json_schema"')
    return None


def _json_schema(name: str, value: Any) -> Structure:
    """Parse a `json_schema`, enforced whatever `strict` is; `name` and `description` are ignored."""
    if type(value) is not dict:
        raise wrong(name, value, "an object with name and schema", code="invalid_type")
    refuse_unknown(name, value, {"name", "description", "schema", "strict"})
    text(f"{name}.name", value.get("name"))
    for key, check in (("description", text), ("strict", flag)):
        if value.get(key) is not None:
            check(f"{name}.{key}", value[key])
    schema = object_(f"{name}.schema", value.get("schema"))
    return Structure(param=f"{name}.schema", fields={"json": schema})


def structured_outputs(name: str, value: Any) -> Structure | None:
    """Parse vLLM's object: exactly one of its kinds, and whether JSON may contain white space."""
    for key in object_(name, value):
        if key not in _KINDS and key != "disable_any_whitespace":
            raise unsupported(f"{name}.{key}", f"{name}.{key} is not supported; remove it")
    values = {key: part for key, part in value.items() if part is not None and not (key in _SWITCHES and part is False)}
    kinds = values.keys() & _KINDS.keys()
    if len(kinds) != 1:
        raise BodyError(name, f"{name} has {len(kinds)} kinds; give exactly one of {', '.join(_KINDS)}")
    (kind,) = kinds
    fields = {kind: _KINDS[kind](f"{name}.{kind}", values[kind])}
    if value.get("disable_any_whitespace") is not None:
        fields["any_whitespace"] = not flag(f"{name}.disable_any_whitespace", value["disable_any_whitespace"])
    return Structure(param=f"{name}.{kind}", fields=fields)


def guided(kind: str) -> Check:
    """Return the check of a parameter of older vLLM, `guided_<kind>`."""

    def check(name: str, value: Any) -> Structure:
        return Structure(param=name, fields={kind: _KINDS[kind](name, value)})

    return check


def structure_of(values: Mapping[str, Any]) -> Structure | None:
    """Return the one structure among a body's checked parameters. Raises BodyError when there are two."""
    if values.keys().isdisjoint(STRUCTURES):  # as in most lines
        return None
    structures = [(name, values[name]) for name in STRUCTURES if values.get(name) is not None]
    if len(structures) > 1:
        raise BodyError(structures[1][0], f"{structures[0][0]} and {structures[1][0]} are both given; give one of them")
    if structures and values.get("ignore_eos"):
        raise BodyError("ignore_eos", f"ignore_eos is true and {structures[0][0]} ends the output; give one of them")
    return _with_one_of(structures[0][1], values) if structures else None


def _with_one_of(structure: Structure, values: Mapping[str, Any]) -> Structure:
    """Add to a structure with a JSON schema how its `oneOf` is treated."""
    if not values.get(ONE_OF_AS_ANY_OF) or "json" not in structure.fields:
        return structure
    return replace(structure, fields={**structure.fields, ONE_OF_AS_ANY_OF: True})


def _schema(name: str, value: Any) -> Any:
    if type(value) not in (dict, str):
        raise wrong(name, value, "a JSON schema: an object, or its text", code="invalid_type")
    return value


def _choice(name: str, value: Any) -> tuple[str, ...]:
    if type(value) is not list or not value or not all(type(part) is str and part for part in value):
        raise wrong(name, value, "a list of at least one non-empty string", code="invalid_type")
    return tuple(value)


def _pattern(name: str, value: Any) -> str:
    if not text(name, value):
        raise wrong(name, value, "a non-empty string")
    return str(value)


_SWITCHES = frozenset({"json_object"})
_KINDS: dict[str, Check] = {
    "json": _schema,
    "json_object": flag,
    "regex": _pattern,
    "choice": _choice,
    "grammar": _pattern,
}

STRUCTURES: dict[str, Check] = {
    "response_format": response_format,
    "structured_outputs": structured_outputs,
    "guided_json": guided("json"),
    "guided_regex": guided("regex"),
    "guided_choice": guided("choice"),
    "guided_grammar": guided("grammar"),
}
"""Parameters that constrain the output; a body may have one of them."""
