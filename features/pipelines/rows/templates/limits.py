"""The filters and statements that a template may use, and the limits of rendering one row."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SOURCE_BYTES = 256 << 10

FILTERS = frozenset(
    {"abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "indent", "int", "items", "join"}
    | {"last", "length", "lines", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse"}
    | {"round", "select", "selectattr", "sort", "split", "string", "sum", "title", "tojson", "trim", "truncate"}
    | {"unique", "upper"}
)
"""minijinja's filters of these names, except `tojson` and `truncate`, which are ours."""

FUNCTIONS = frozenset({"dict", "namespace", "range"})

STATEMENTS = frozenset(
    {"if", "elif", "else", "endif", "for", "endfor", "break", "continue", "set", "endset", "with", "endwith"}
    | {"macro", "endmacro", "filter", "endfilter", "raw", "endraw"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one row, except `max_deaths`."""

    max_output_bytes: int = 1 << 20
    """Size of all messages together in UTF-8."""
    max_row_bytes: int = 16 << 20
    """Size of a row as JSON."""
    fuel: int = 200_000
    """Instructions, which take 18 ms (minijinja 3.0.5, one core of a busy machine, 2026-11-22)."""
    memory_bytes: int = 256 << 20
    """Memory beyond that of the renderer's process after reading its template; enforced only on Linux."""
    cpu_seconds: float = 2.0
    """For one long call that fuel does not count, such as a sort."""
    silence_seconds: float = 60.0
    """Wall time after which a silent renderer is killed: longer than its CPU seconds on a busy machine."""
    max_deaths: int = 100
    """Rows of one input that may kill their renderer: forking another takes some 4 ms of processor time."""
