"""A local folder as the object store: durability before a row references an object, and free space."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

_COPIED_AT_ONCE = 1 << 30
_READ_BYTES = 4 << 20
_NO_KERNEL_COPY = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
_LEAST_FREE_BYTES = 1 << 20
"""Below this a folder counts as full: a write of one part would fail."""


class SyncedFolders:
    """Folders below a root whose names are known to be on disk: each is created and synced once per process.

    A file's own sync does not cover the folders above it: a power cut could take a tenant's first object with them.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._synced: set[Path] = set()

    def make_for(self, key: str) -> None:
        """Create the folders of an object."""
        folder = self._root
        for part in Path(key).parent.parts:
            above, folder = folder, folder / part
            if folder not in self._synced:
                folder.mkdir(exist_ok=True)
                sync(above)
                self._synced.add(folder)


def sync(path: Path) -> None:
    """Sync a file or a directory's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_object(root: Path, key: str) -> None:
    """Sync an object and its name to disk: the row that references it is durable, so its bytes must be too."""
    sync(root / key)
    sync((root / key).parent)


def iter_files(root: Path) -> Iterator[tuple[str, datetime]]:
    """Yield the path below `root` of every file, and its modification time."""
    for folder, _, names in os.walk(root):
        for path in (Path(folder) / name for name in names):
            with suppress(FileNotFoundError):  # deleted meanwhile
                yield path.relative_to(root).as_posix(), datetime.fromtimestamp(path.stat().st_mtime, UTC)


def append(path: Path, target: FileIO) -> None:
    """Append a file's content to another. Raises FileNotFoundError where it is missing."""
    with path.open("rb", buffering=0) as source:
        _copy_rest(source, target)


def is_full(root: Path) -> bool:
    """Return whether a folder's file system has no room. A missing folder is not full."""
    try:
        stats = os.statvfs(root)
    except OSError:
        return False
    return stats.f_bavail * stats.f_frsize < _LEAST_FREE_BYTES


def _copy_rest(source: FileIO, target: FileIO) -> None:
    """Copy the rest of a file to another, in the kernel where possible."""
    try:
        while os.copy_file_range(source.fileno(), target.fileno(), _COPIED_AT_ONCE):
            pass
    except (AttributeError, OSError) as error:  # not on Linux, or not on this file system
        if isinstance(error, OSError) and error.errno not in _NO_KERNEL_COPY:
            raise
        shutil.copyfileobj(source, target, _READ_BYTES)
