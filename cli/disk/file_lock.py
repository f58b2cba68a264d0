"""A lock file that contains the pid of its holder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def holding(path: Path, *, taken: Callable[[str], Exception]) -> Iterator[None]:
    """Hold a lock file for the block; if another process holds it, raise `taken(pid)`."""
    while not _is_at(lock := os.open(path, os.O_RDWR | os.O_CREAT, 0o600), path, taken):
        os.close(lock)
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(
            missing_ok=True
        )  # while locked: a process that opened it meanwhile sees that it is no longer at its path
        os.close(lock)


def _is_at(lock: int, path: Path, taken: Callable[[str], Exception]) -> bool:
    """Lock an open file; return whether it is still at its path."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise taken(owner) from None
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), path.stat())
    return False
