"""Two functions that are offered to a model."""

from __future__ import annotations

from typing import Any

from jobs.lines.body_tools import Choice, ToolUse

WEATHER = {
    "$defs": {"place": {"type": "string", "maxLength": 6}},
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/place"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
)


SCHEMAS: dict[str, dict[str, Any]] = {"weather": WEATHER, "now": {"const": {}}}


def use(choice: Choice = Choice.REQUIRED, *, is_parallel: bool = True, tools: Any = TOOLS) -> ToolUse:
    return ToolUse(offered=TOOLS, callable=tools, choice=choice, is_parallel=is_parallel)
