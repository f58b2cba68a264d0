"""Input files: plain JSONL or gzip, which is unpacked while reading."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from jobs.errors import InputError

_GZIP = b"\x1f\x8b"
_PART_BYTES = 2**20


@contextmanager
def opened(path: Path, *, give: str = "the path of a JSONL file") -> Iterator[BinaryIO]:
    """Open the unpacked content of a file for a single read. Raises InputError if it cannot be read or unpacked."""
    try:
        with path.open("rb") as file:
            if not _is_gzip(file):
                yield file
                return
            with gzip.open(file) as unpacked:
                yield cast(BinaryIO, unpacked)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"cannot unpack {path}: {error}. Compress it again, or give it unpacked.") from None
    except OSError as error:
        if error.filename != str(path):
            raise
        raise InputError(f"cannot read {path}: {error.strerror}. Give {give}.") from None


@contextmanager
def plain(path: Path, *, give: str = "the path of a JSONL file") -> Iterator[tuple[str, BinaryIO]]:
    """Open a file for upload: its name without .gz, and its content, unpacked to a temporary file if needed."""
    with opened(path, give=give) as content:
        if not isinstance(content, gzip.GzipFile):
            yield path.name, content
            return
        with tempfile.TemporaryFile() as unpacked:
            try:
                shutil.copyfileobj(content, unpacked)
            except OSError as error:
                error.filename = error.filename or tempfile.gettempdir()
                raise
            unpacked.seek(0)
            yield path.name.removesuffix(".gz"), unpacked


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's unpacked content in hexadecimal. Raises InputError."""
    with opened(path) as content:
        digest = hashlib.sha256()
        while part := content.read(_PART_BYTES):
            digest.update(part)
    return digest.hexdigest()


@contextmanager
def raw(path: Path) -> Iterator[tuple[str, BinaryIO]]:
    """Open a file for upload as is."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Give the path of a file.") from None
    with file:
        yield path.name, file


def _is_gzip(file: BinaryIO) -> bool:
    """Check the first bytes; a pipe, which cannot be read twice, is taken as plain."""
    if not file.seekable():
        return False
    is_gzip = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    return is_gzip
