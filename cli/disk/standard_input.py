"""`-` in place of an input file: what standard input holds, copied to a file that lasts as long as the command."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import typer

STANDARD_INPUT = "-"

_Source = TypeVar("_Source", str, Path)


def from_stdin(context: typer.Context, source: _Source) -> _Source:
    """Return an argument's value; for `-` the path of a copy of standard input."""
    copy = stdin_copy(context, str(source))
    return source if copy is None else type(source)(copy)


def stdin_copy(context: typer.Context, source: str) -> Path | None:
    """Return a copy of standard input, deleted when the command ends, if the source is `-`.

    A file of problems that is written beside it stays.
    """
    if source != STANDARD_INPUT:
        return None
    if sys.stdin.isatty():
        print("tokenmill: reading JSONL from standard input; Ctrl-D ends it", file=sys.stderr, flush=True)
    path = Path(tempfile.mkdtemp(prefix="tokenmill-")) / "stdin.jsonl"
    context.call_on_close(lambda: _delete(path))
    with path.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    return path


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
    with suppress(OSError):  # it has a file of problems
        path.parent.rmdir()
