"""What runs and extractions do with a store, and what one raises. Knows no kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Protocol

from jobs.errors import InputError

BESIDE = "_temporary"
"""The part of a key below which files lie until they are published; sources leave it out."""


class StoreRefusedError(InputError):
    """The store will not do this however often it is asked: no right, no such file, a link that leads elsewhere."""

    code = "store_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file of a store."""

    key: str
    size_bytes: int
    version: str
    """Another one once it has changed."""


class ExternalStore(Protocol):
    """What runs do with a store. Raises StoreRefusedError, and ServiceError where another try may help."""

    def list(self, prefix: str) -> Iterator[Found]:
        """Yield the files whose keys begin with a prefix, which ends in / or names one file, in order of their keys."""

    def open(self, key: str) -> IO[bytes]:
        """Open a file to read; it can seek."""

    def read_small(self, key: str, max_bytes: int) -> bytes | None:
        """Return the first bytes of a file, None where there is none."""

    def create(self, key: str) -> Any:
        """Return a context in which a file is written; it appears, whole, when the context ends without an error."""

    def move(self, key: str, to: str) -> bool:
        """Give a file another key, in the place of what is there; False where it is not there (any more)."""

    def delete(self, key: str) -> None:
        """Delete a file; one that is gone is no error."""

    def clear(self, folder: str) -> None:
        """Delete all that is below a folder, hidden files too."""
