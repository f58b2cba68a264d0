"""The note of a running embedded stack in its data directory, for other commands: its URLs and roles."""

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
    """A running stack."""

    pid: int
    started_at: float
    """Unix seconds."""
    base_url: str
    environment: Mapping[str, str]
    """The URLs that roles need; that of Postgres may contain a password."""
    roles: Sequence[str]
    """The names of its processes, in start order."""
    is_of_command: bool = False
    """Whether it ends with a command, such as `tokenmill run`."""


def write_note(data_dir: DataDir, note: StackNote) -> None:
    write_secret(_path(data_dir), json.dumps(asdict(note)))


def forget_note(data_dir: DataDir) -> None:
    _path(data_dir).unlink(missing_ok=True)


def running_stack_of(root: Path) -> StackNote | None:
    """Return the note of the stack that runs on `root`; None if none does, even if a killed one left a note."""
    data_dir = DataDir(root=root.expanduser().absolute())
    try:
        text = _path(data_dir).read_text()
    except FileNotFoundError:  # no stack, or one that is starting or stopping
        return None
    # After the note: the check holds the lock for a moment, in which a starting stack would be refused.
    return StackNote(**json.loads(text)) if _is_locked(data_dir.lock_file) else None


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
