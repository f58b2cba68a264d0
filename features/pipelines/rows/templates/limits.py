"""What a template may use, and what it may cost: one row never more than these, and so nobody else anything."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SOURCE_BYTES = 256 << 10

FILTERS = frozenset(
    {"abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "indent", "int", "items", "join"}
    | {"last", "length", "lines", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse"}
    | {"round", "select", "selectattr", "sort", "split", "string", "sum", "title", "tojson", "trim", "truncate"}
    | {"unique", "upper"}
)
"""minijinja's own of these names, but for `tojson` and `truncate`, which are ours."""

FUNCTIONS = frozenset({"dict", "namespace", "range"})

STATEMENTS = frozenset(
    {"if", "elif", "else", "endif", "for", "endfor", "break", "continue", "set", "endset", "with", "endwith"}
    | {"macro", "endmacro", "filter", "endfilter", "raw", "endraw"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one row, but for the last."""

    max_output_bytes: int = 1 << 20
    """In UTF-8, all messages together."""
    max_row_bytes: int = 16 << 20
    """What a row may be as JSON."""
    fuel: int = 200_000
    """Instructions: 18 ms of them (minijinja 3.0.5, one core of a busy machine, 2026-11-22)."""
    memory_bytes: int = 256 << 20
    """Above what the renderer's process has when it has read its template; Linux alone keeps this."""
    cpu_seconds: float = 2.0
    """For one long call that fuel does not count, such as a sort."""
    silence_seconds: float = 60.0
    """Wall time after which a renderer that says nothing is ended: longer than its CPU seconds on a busy machine."""
    max_deaths: int = 100
    """Rows of one input that may cost their renderer its life: starting another takes some 50 ms."""
