"""What a running embedded stack notes in its data directory for other commands: where it is reached, and its roles."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cli.data_dir import DataDir, write_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class StackNote:
    """A stack as it was started."""

    pid: int
    started_at: float
    """Unix seconds."""
    base_url: str
    environment: Mapping[str, str]
    """The URLs that roles need; Postgres' may hold a password."""
    roles: Sequence[str]
    """The names of its processes, in the order of their start."""


def write_note(data_dir: DataDir, note: StackNote) -> None:
    write_secret(_path(data_dir), json.dumps(asdict(note)))


def forget_note(data_dir: DataDir) -> None:
    _path(data_dir).unlink(missing_ok=True)


def running_stack_of(root: Path) -> StackNote | None:
    """Return the note of the stack that runs on `root`; None where none does, whatever a killed one left behind."""
    data_dir = DataDir(root=root.expanduser().absolute())
    try:
        noted = _path(data_dir).read_text()
    except FileNotFoundError:  # nothing runs, or it is starting or stopping, or is `tokenmill run`'s own
        return None
    # After the note: asking holds the lock for a moment, in which a stack that starts there would be refused.
    return StackNote(**json.loads(noted)) if _is_locked(data_dir.lock_file) else None


def _is_locked(lock_file: Path) -> bool:
    try:
        lock = os.open(lock_file, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _path(data_dir: DataDir) -> Path:
    return data_dir.run / "stack.json"
