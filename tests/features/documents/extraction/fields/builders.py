"""Schemas for tests of extraction."""

from __future__ import annotations

from typing import Any

INVOICE: dict[str, Any] = {
    "type": "object",
    "x-tokenmill": {"checks": ["sum(lines.amount) == net", "net + tax == total", "issued <= due"]},
    "$defs": {
        "Line": {
            "type": "object",
            "properties": {
                "article": {"type": "string", "x-tokenmill": {"key": True}},
                "quantity": {"type": "integer", "minimum": 1},
                "amount": {"type": "number", "x-tokenmill": {"metric": "money"}},
            },
        }
    },
    "properties": {
        "number": {
            "type": "string",
            "description": "number of the\n invoice",
            "x-tokenmill": {"required_for_auto": True},
        },
        "vendor": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "iban": {"type": "string", "format": "iban"}},
        },
        "issued": {"type": "string", "format": "date"},
        "due": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "default": None},
        "currency": {"enum": ["EUR", "USD", None], "x-tokenmill": {"ground": False}},
        "lines": {"type": "array", "maxItems": 20, "items": {"$ref": "#/$defs/Line"}},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "words on the stamp"},
        "net": {"type": ["number", "null"], "x-tokenmill": {"metric": "money"}},
        "tax": {"type": "number", "x-tokenmill": {"metric": "money"}},
        "total": {"type": "number", "x-tokenmill": {"metric": "money", "weight": 3}},
        "paid": {"type": "boolean"},
    },
}


def wide_schema(num_leaves: int, *, key: bool = True) -> dict[str, Any]:
    """Return a schema of sections with nine leaves each, and of an array whose items have a third of all leaves."""
    kinds: list[dict[str, Any]] = [
        {"type": "string", "maxLength": 60},
        {"type": "number"},
        {"type": "string", "format": "date"},
        {"type": "boolean"},
        {"enum": ["new", "old", "other"]},
    ]
    leaves = {f"field_{index}": dict(kinds[index % len(kinds)]) for index in range(num_leaves)}
    names = list(leaves)
    in_items, others = names[: num_leaves // 3], names[num_leaves // 3 :]
    items = {name: leaves[name] for name in in_items}
    if key:
        items[in_items[0]] = {**items[in_items[0]], "x-tokenmill": {"key": True}}
    sections = {
        f"section_{start}": {"type": "object", "properties": {name: leaves[name] for name in others[start : start + 9]}}
        for start in range(0, len(others), 9)
    }
    return {
        "type": "object",
        "properties": {**sections, "rows": {"type": "array", "items": {"type": "object", "properties": items}}},
    }
