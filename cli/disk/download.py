"""Writes files atomically, such as downloads."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from openai import OpenAI


class OutputError(OSError):
    """A file could not be created or replaced; has its name."""


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Write a temporary file beside `target` that replaces it at the end, and is deleted if anything fails.

    A device or a pipe is written directly. If writing fails, the OSError names `target`.
    """
    if target.exists() and not target.is_file():
        with _named_after(target), target.open("wb") as stream:
            yield stream
        return
    target = target.resolve()  # replaces the target of a link, not the link
    with _as_output_error(target):
        file, unfinished = _begin(target)
    try:
        with _named_after(target):
            yield file
        with _as_output_error(target):
            file.flush()
            unfinished.chmod(_mode_of(target))
            unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        file.raw.close()  # without flushing to a full disk
        raise
    finally:
        file.close()  # releases the lock: see _begin


def try_to_begin(target: Path) -> None:
    """Create and remove the temporary file of `replacing`. Raises OutputError if it cannot be created."""
    with _as_output_error(target):
        file, unfinished = _begin(target.resolve())
        unfinished.unlink()  # while it is locked: see _begin
        file.close()


def _begin(target: Path) -> tuple[BufferedWriter, Path]:
    """Open an empty file beside `target`: one that a killed command left, unless another process writes it."""
    path = target.with_name(f".{target.name}.part")
    with suppress(OSError):
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if _is_free(number, path):
            os.ftruncate(number, 0)
            return os.fdopen(number, "wb"), path
        os.close(number)
    number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    return os.fdopen(number, "wb"), Path(name)


def _is_free(number: int, path: Path) -> bool:
    """Lock an open file; return whether that succeeds, and the file is ours and still at its path."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    status = os.fstat(number)
    is_at_path = path.exists() and os.path.samestat(status, path.stat())
    return is_at_path and status.st_uid == os.geteuid() and status.st_nlink == 1


def _mode_of(target: Path) -> int:
    """Return the permissions of a file, or those of a new one."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def _named_after(target: Path) -> Iterator[None]:
    """Add the file's name to an OSError: a write on a full disk has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None and error.strerror is not None:
            error.filename = str(target)
        raise


@contextmanager
def _as_output_error(target: Path) -> Iterator[None]:
    """Replace the name of the temporary file in an OSError by `target`."""
    try:
        yield
    except OSError as error:
        raise OutputError(error.errno, error.strerror, str(target)) from error


def download(client: OpenAI, file_id: str | None, target: Path) -> None:
    """Stream the file to `target`, replaced once complete. Without an id: an empty file."""
    with replacing(target) as file:
        if file_id is not None:
            with client.files.with_streaming_response.content(file_id) as answer:
                for part in answer.iter_bytes():
                    file.write(part)
