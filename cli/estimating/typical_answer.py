"""The typical answer for a JSON schema, for counting its tokens.

Lengths of texts and lists, which a schema does not define, are those of the tutorials' documents; docs/extraction.md
has the error of this estimate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_TEXT = "Birch Ltd 42"
_BY_FORMAT = {"date": "2024-05-17", "date-time": "2024-05-17T09:30:00Z", "time": "09:30:00", "email": "ash@example.org"}
_NUM_SCALARS = 3
_NUM_OBJECTS = 8
"""Items of a list of words or numbers, and of a list of objects."""
_MOST_DEPTH = 20
"""Limits recursive schemas."""


def typical_answer(schema: Any, *, is_empty: bool = False) -> str:
    """Return the text of an answer; with `is_empty` every value that may be null is null."""
    root = schema if isinstance(schema, dict) else {}
    value = _Writer(root, is_empty=is_empty).value(root, depth=0)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Writer:
    def __init__(self, root: Mapping[str, Any], *, is_empty: bool) -> None:
        self._root = root
        self._is_empty = is_empty

    def value(self, schema: Any, *, depth: int) -> Any:
        """Return a value that follows the parts of a schema that determine its length."""
        if not isinstance(schema, dict) or depth > _MOST_DEPTH:
            return _TEXT
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return _middle(schema["enum"])
        for name in ("anyOf", "oneOf"):
            if schema.get(name):
                return self._choice(schema[name], depth=depth)
        if isinstance(schema.get("$ref"), str):
            return self.value(self._named(schema["$ref"]), depth=depth + 1)
        return self._of_type(schema, depth=depth)

    def _choice(self, options: list[Any], *, depth: int) -> Any:
        others = [one for one in options if not (isinstance(one, dict) and one.get("type") == "null")]
        if not others or (self._is_empty and len(others) < len(options)):
            return None
        return self.value(others[0], depth=depth + 1)

    def _named(self, reference: str) -> Any:
        target: Any = self._root
        for part in reference.removeprefix("#").strip("/").split("/"):
            target = target.get(part) if isinstance(target, dict) and part else target
        return target

    def _of_type(self, schema: Mapping[str, Any], *, depth: int) -> Any:
        types = schema.get("type")
        names = types if isinstance(types, list) else [types]
        if self._is_empty and "null" in names:
            return None
        name = next((one for one in names if one != "null"), "null")
        if name == "object" or "properties" in schema:
            properties = schema.get("properties") or {}
            return {key: self.value(one, depth=depth + 1) for key, one in properties.items()}
        if name == "array":
            return self._items(schema, depth=depth)
        plain = {"integer": 12, "number": 123.45, "boolean": True, "null": None}
        return plain[name] if name in plain else _text(schema)

    def _items(self, schema: Mapping[str, Any], *, depth: int) -> list[Any]:
        item = self.value(schema.get("items"), depth=depth + 1)
        usual = _NUM_OBJECTS if isinstance(item, dict) else _NUM_SCALARS
        count = max(int(schema.get("minItems", 0)), min(usual, int(schema.get("maxItems", usual))))
        return [item] * count


def _text(schema: Mapping[str, Any]) -> str:
    text = _BY_FORMAT.get(str(schema.get("format")), _TEXT)
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", len(text)))
    return (text * (1 + least // len(text)))[: max(least, min(most, len(text)))]


def _middle(options: list[Any]) -> Any:
    """Return the option of middling length."""
    return sorted(options, key=lambda one: len(str(one)))[len(options) // 2]
