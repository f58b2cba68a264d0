"""Brings what a server sends to disk, whole or not at all."""

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
    """A file could not be made or put in its place; has its name."""


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Write a new file beside `target` that takes its place at the end, and is gone where anything fails before.

    A device or a pipe is written as it is: nothing can take its place. Where writing fails, the OSError names `target`.
    """
    if target.exists() and not target.is_file():
        with _named_after(target), target.open("wb") as stream:
            yield stream
        return
    target = target.resolve()  # what a link leads to is replaced, and not the link
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
        file.raw.close()  # without what a full disk has no room for
        raise
    finally:
        file.close()  # now others may begin one: see _begin


def try_to_begin(target: Path) -> None:
    """Make the file that `replacing` begins with, and remove it. Raises OutputError where it cannot be made."""
    with _as_output_error(target):
        file, unfinished = _begin(target.resolve())
        unfinished.unlink()  # while it is ours: see _begin
        file.close()


def _begin(target: Path) -> tuple[BufferedWriter, Path]:
    """Open an empty file beside `target`: the one that a killed command left, unless somebody writes it."""
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
    """Lock an open file that is ours; tell whether nobody else writes it, and it is still at its path."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    found = os.fstat(number)
    is_at_path = path.exists() and os.path.samestat(found, path.stat())
    return is_at_path and found.st_uid == os.geteuid() and found.st_nlink == 1


def _mode_of(target: Path) -> int:
    """Return the permissions of a file, or those that a new one would have."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def _named_after(target: Path) -> Iterator[None]:
    """A write on a full disk fails without the name of its file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None and error.strerror is not None:
            error.filename = str(target)
        raise


@contextmanager
def _as_output_error(target: Path) -> Iterator[None]:
    """What is made beside `target` fails with a name that nobody has given."""
    try:
        yield
    except OSError as error:
        raise OutputError(error.errno, error.strerror, str(target)) from error


def download(client: OpenAI, file_id: str | None, target: Path) -> None:
    """Stream the file to `target`, which is replaced when it is complete. No id: an empty file."""
    with replacing(target) as file:
        if file_id is not None:
            with client.files.with_streaming_response.content(file_id) as answer:
                for part in answer.iter_bytes():
                    file.write(part)
