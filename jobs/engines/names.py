"""Names of engines, for commands and pages too: imports nothing."""

from __future__ import annotations

OWN = "tokenmill"
"""The kind of our own engine: alone in promising the same bits for the same line."""


def label(kind: str, version: str | None, *, is_outside: bool = False) -> str:
    """Return the name of an engine in sentences and lists."""
    return (kind if version is None else f"{kind} {version}") + (", outside the house" if is_outside else "")
