"""The interface of stores for runs and extractions, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Protocol

from jobs.errors import InputError

BESIDE = "_temporary"
"""The folder that holds files until they are published; sources skip it."""


class StoreRefusedError(InputError):
    """The store refuses, and a retry does not help: no right, no such file, a symbolic link."""

    code = "store_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file of a store."""

    key: str
    size_bytes: int
    version: str
    """Changes when the file does."""


class ExternalStore(Protocol):
    """A store. Methods raise StoreRefusedError, and ServiceError if a retry may help."""

    def list(self, prefix: str) -> Iterator[Found]:
        """Yield the files below a prefix that ends in /, or the one file that it names, in order of their keys."""

    def open(self, key: str) -> IO[bytes]:
        """Open a file for reading; it is seekable."""

    def read_small(self, key: str, max_bytes: int) -> bytes | None:
        """Return the first bytes of a file, None if there is no file."""

    def create(self, key: str) -> Any:
        """Return a context in which a file is written; the whole file appears when the context ends without error."""

    def move(self, key: str, to: str) -> bool:
        """Move a file to another key, replacing what is there; return False if the file does not exist (any more)."""

    def delete(self, key: str) -> None:
        """Delete a file; a missing file is no error."""

    def clear(self, folder: str) -> None:
        """Delete everything below a folder, including hidden files."""
