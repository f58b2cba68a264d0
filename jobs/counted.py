"""Writes a number with what it counts, as every command, page and message shows it. Pure."""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return such as `1 line` or `1,200 lines`; `several` is for words whose plural is more than an s."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
