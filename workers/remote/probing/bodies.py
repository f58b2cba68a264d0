"""Writes the request of a probe in a server's dialect, and bounds the tokens that it uses. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.remote.dialects import Dialect
from workers.remote.probing.effects import PLAIN_TOKENS
from workers.remote.probing.probes import COUNTING

_TEMPLATE_TOKENS = 32
"""Assumed for a prompt, with its template, until an answer tells."""
_TOOL_TOKENS = 160
"""What the description of a tool may add."""


def body_of(fields: Mapping[str, Any], dialect: Dialect, *, model: str, is_chat: bool) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request."""
    fields = dict(fields)
    path = fields.pop("path", "chat/completions" if is_chat else "completions")
    prompt, limit = fields.pop("prompt", COUNTING), fields.pop("max_tokens", PLAIN_TOKENS)
    in_chat = path == "chat/completions"
    asked = {"messages": [{"role": "user", "content": prompt}]} if in_chat else {"prompt": prompt}
    limits = {dialect.token_limit if in_chat else "max_tokens": limit}
    return path, {"model": model, "stream": False, "temperature": 0.0, **dialect.neutral, **asked, **limits, **fields}


def most_tokens(fields: Mapping[str, Any], *, prompt_tokens: int | None) -> int:
    """Return about how many tokens a request uses at most; `prompt_tokens` are those of an earlier, similar prompt."""
    tools = _TOOL_TOKENS if "tools" in fields else 0
    answer = int(fields.get("max_tokens", PLAIN_TOKENS)) * int(fields.get("n", 1))
    return (prompt_tokens or _TEMPLATE_TOKENS) + tools + answer
