"""Brings what a server sends to disk, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from openai import OpenAI


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
    with _named_after(target):
        number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    unfinished = Path(name)
    try:
        with _named_after(target):
            with os.fdopen(number, "wb") as file:
                yield file
            unfinished.chmod(_mode_of(target))
            unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


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


def download(client: OpenAI, file_id: str | None, target: Path) -> None:
    """Stream the file to `target`, which is replaced when it is complete. No id: an empty file."""
    with replacing(target) as file:
        if file_id is not None:
            with client.files.with_streaming_response.content(file_id) as answer:
                for part in answer.iter_bytes():
                    file.write(part)
