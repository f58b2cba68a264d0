"""Format a number with its noun, as in every command, page and message. Pure."""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return text such as `1 line` or `1,200 lines`; `several` is the plural where it is more than an s."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
