"""Checks, before any work is done, that an output can be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from cli.disk.download import OutputError, try_to_begin
from jobs.errors import InputError


def require_writable(output: Path) -> None:
    """Raise InputError unless `output` can be written: a device, a pipe, or a file that can be replaced."""
    if output.exists() and not output.is_file() and not output.is_dir():
        if not os.access(output, os.W_OK):
            raise _not_permitted(output)
        return
    require_replaceable(output)


def require_replaceable(output: Path) -> None:
    """Raise InputError unless a new file can replace `output`, which must not be a device or a pipe.

    Creates a file to find out: permissions do not tell what a file system such as /proc allows.
    """
    folder = output.absolute().parent
    if output.is_dir():
        raise InputError(f"{output} is a folder. Give the path of a file with -o.")
    if not folder.is_dir():
        raise InputError(f"the folder {folder} does not exist. Create it, or choose another output with -o.")
    if output.exists() and not output.is_file():
        raise InputError(
            f"{output} is not a regular file, and the output would replace it. Choose another output with -o."
        )
    if output.exists() and not os.access(output, os.W_OK):
        raise _not_permitted(output)
    try:
        try_to_begin(output)
    except OutputError as error:
        if error.errno == errno.EACCES:
            raise _not_permitted(output) from None
        raise InputError(
            f"cannot write {output}: no file can be created there ({error.strerror}). Choose another output with -o."
        ) from None


def require_apart(outputs: Iterable[Path], read: Mapping[Path, str]) -> None:
    """Raise InputError if an output would replace another, or an input; `read` describes the inputs."""
    taken = {path.resolve(): what for path, what in read.items()}
    written = set[Path]()
    for path in outputs:
        place = path.resolve()
        if place in taken:
            raise InputError(f"the output {path} is {taken[place]}. Choose another path.")
        if place in written:
            raise InputError("two outputs have the same path. Give each its own path.")
        written.add(place)


def _not_permitted(output: Path) -> InputError:
    return InputError(f"cannot write {output}: permission denied. Choose another output with -o.")
