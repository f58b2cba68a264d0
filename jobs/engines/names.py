"""Names of engines, for commands and pages too: imports nothing."""

from __future__ import annotations

OWN = "tokenmill"
"""The kind of our own engine: alone in promising the same bits for the same line."""


def label(kind: str, version: str | None) -> str:
    """Return the name of an engine in sentences."""
    return kind if version is None else f"{kind} {version}"
