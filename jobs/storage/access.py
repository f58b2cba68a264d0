"""Access to one object store: open it, verify that it belongs to the database, translate its failures.

An unmounted folder, a removed bucket and an ingress without a backend answer "not there" for every object. Our stores
carry a marker, so that such an answer is not taken for the loss of an object.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore

from jobs.errors import NotFoundError, ServiceError, StorageFullError
from jobs.storage import local
from jobs.storage.connection import AbsentError, check_url, open_store, store_failure

if TYPE_CHECKING:
    from obstore.store import ObjectStore

MARKER = ".database"
"""Object with the id of the database that the store belongs to: `jobs.storage.store_marker`."""
_MAX_MARKER_BYTES = 200
_FULL_SECONDS = 60.0
"""How long the store counts as full after it refused a write, unless a write succeeds."""


class StoreAccess:
    """One store and its marker. Thread-safe."""

    def __init__(self, url: str, *, timeout_seconds: float, max_retries: int, is_marked: bool) -> None:
        """Without `is_marked` a missing folder is created. Raises InputError for an invalid URL, ServiceError."""
        check_url(url)
        self.url = url
        self.is_marked = is_marked
        self.is_local = url.startswith("file://")
        self.marker: str | None = None
        """The required marker, as `store_marker.bind` found it in the database; None: not known yet."""
        self._timeout_seconds = timeout_seconds
        self._max_retries = max_retries
        self._refused_at: float | None = None  # the last time that a write found no room
        if not (is_marked and self.is_local):
            _ = self.store

    @cached_property
    def store(self) -> ObjectStore:
        """Return the open store. Raises AbsentError while its folder is missing."""
        return self._opened(makes_root=not self.is_marked)

    def _opened(self, *, makes_root: bool) -> ObjectStore:
        return open_store(
            self.url, timeout_seconds=self._timeout_seconds, max_retries=self._max_retries, makes_root=makes_root
        )

    @cached_property
    def folder(self) -> Path:
        """Return the root of a local store."""
        assert isinstance(self.store, LocalStore)
        assert self.store.prefix is not None
        return Path(self.store.prefix)

    @cached_property
    def folders(self) -> local.SyncedFolders:
        """Return the folders of a local store."""
        return local.SyncedFolders(self.folder)

    # --- the marker --------------------------------------------------------------------------------------------------

    def read_marker(self) -> str | None:
        """Return the store's marker; None where none can be found: the store may be away."""
        with suppress(AbsentError), self.reported():
            marker = obstore.get_range(self.store, MARKER, start=0, end=_MAX_MARKER_BYTES)
            return bytes(marker).decode(errors="replace")
        return None

    async def _read_marker_async(self) -> str | None:
        with suppress(AbsentError), self.reported():
            marker = await obstore.get_range_async(self.store, MARKER, start=0, end=_MAX_MARKER_BYTES)
            return bytes(marker).decode(errors="replace")
        return None

    def write_marker(self, marker: str) -> None:
        """Make this the store of a database; creates its folder where missing."""
        if self.is_local:
            self._opened(makes_root=True)
        with self.reported():
            obstore.put(self.store, MARKER, marker.encode())
            if self.is_local:
                local.sync_object(self.folder, MARKER)

    def require_marker(self) -> None:
        """Raise ServiceError unless the store carries its marker, where one is required."""
        if self.is_marked:
            self._require(None if self.marker is None else self.read_marker())

    async def require_marker_async(self) -> None:
        """As `require_marker`, without a thread; where no marker is required the store must still answer."""
        marker = await self._read_marker_async()
        if self.is_marked:
            self._require(marker)

    def _require(self, marker: str | None) -> None:
        if marker is None or marker != self.marker:
            raise ServiceError(
                f"the object store {self.url} is away: it does not carry the marker of this database. Mount it, or see "
                "what answers under TOKENMILL_STORAGE_URL; where it was moved or lost, `tokenmill db adopt-storage` "
                "writes the marker"
            )

    # --- failures ----------------------------------------------------------------------------------------------------

    @contextmanager
    def reported(self, key: str | None = None) -> Iterator[None]:
        """Translate the store's failures.

        A missing object raises NotFoundError with its `key`, provided that the marker can be read; without a key
        AbsentError.
        """
        try:
            yield
        except FileNotFoundError as error:
            if key is None:
                raise AbsentError(store_failure(self.url, error).message) from error
            self.require_marker()
            raise self.no_object(key) from None
        except (BaseError, OSError) as error:
            failure = store_failure(self.url, error)
            if isinstance(failure, StorageFullError):
                self._refused_at = time.monotonic()
            raise failure from error

    def no_object(self, key: str) -> NotFoundError:
        """Return the error for an object that is absent from a store that is there."""
        return NotFoundError(f"there is no object {key!r} in {self.url}", code="object_missing")

    def note_room(self) -> None:
        """Record a successful write."""
        self._refused_at = None

    @property
    def is_there(self) -> bool:
        """Return whether a local store's folder is there; of other stores nothing is known."""
        with suppress(AbsentError):
            return self.store is not None
        return False

    @property
    def is_full(self) -> bool:
        """Return whether the store is full: its file system, or it has recently refused a write for lack of space."""
        if self.is_local and self.is_there and local.is_full(self.folder):
            return True
        return self._refused_at is not None and time.monotonic() - self._refused_at < _FULL_SECONDS
