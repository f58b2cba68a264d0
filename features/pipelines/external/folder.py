"""A folder of this machine as a store.

Paths are opened part by part, and symbolic links are never followed, so that nobody who can write into the folder can
redirect reads or writes out of it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from features.pipelines.external.store import BESIDE, Found, StoreRefusedError
from jobs.errors import ServiceError, StorageFullError, StoreAwayError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 50


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, name: str, root: Path) -> None:
        self._name = name
        self._root = root

    def list(self, prefix: str) -> Iterator[Found]:
        folder, _, last = prefix.rpartition("/")
        with self._reported(prefix):
            try:
                descriptor = self._enter(folder)
            except FileNotFoundError:
                return
            try:
                yield from self._walk(descriptor, f"{folder}/" if folder else "", only=last or None)
            finally:
                os.close(descriptor)

    def _walk(self, descriptor: int, path: str, *, only: str | None = None, depth: int = 0) -> Iterator[Found]:
        if depth > _MAX_DEPTH:
            raise StoreRefusedError(f"{path[:100]!r}… of the store {self._name!r} is deeper than {_MAX_DEPTH} folders.")
        with os.scandir(descriptor) as entries:
            names = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        for name, is_folder in names:
            if name == BESIDE or name.startswith(".") or (only is not None and name != only):
                continue
            if not is_folder:
                try:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # renamed or deleted since its folder was read
                if stat.S_ISREG(status.st_mode):
                    yield _found(path + name, status)
                continue
            if only is None:
                try:
                    below = os.open(name, _FOLDER, dir_fd=descriptor)
                except FileNotFoundError:
                    continue
                try:
                    yield from self._walk(below, f"{path}{name}/", depth=depth + 1)
                finally:
                    os.close(below)

    def open(self, key: str) -> IO[bytes]:
        with self._reported(key):
            return os.fdopen(self._open(key, os.O_RDONLY), "rb")

    def read_small(self, key: str, max_bytes: int) -> bytes | None:
        with self._reported(key):
            try:
                with os.fdopen(self._open(key, os.O_RDONLY), "rb") as file:
                    return file.read(max_bytes)
            except FileNotFoundError:
                return None

    @contextmanager
    def create(self, key: str) -> Iterator[IO[bytes]]:
        folder, _, name = key.rpartition("/")
        unfinished = f".{name}.{os.urandom(6).hex()}"  # unique, as two workers may write the same file for a while
        with self._reported(key):
            descriptor = self._enter(folder, make=True)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                try:
                    with os.fdopen(os.open(unfinished, flags, 0o644, dir_fd=descriptor), "wb") as file:
                        yield file
                        file.flush()
                        os.fsync(file.fileno())
                    os.rename(unfinished, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
                except Exception:
                    with suppress(FileNotFoundError):  # it may not have been created
                        os.unlink(unfinished, dir_fd=descriptor)
                    raise
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def move(self, key: str, to: str) -> bool:
        source, _, name = key.rpartition("/")
        target, _, new_name = to.rpartition("/")
        with self._reported(key):
            try:
                before = self._enter(source)
            except FileNotFoundError:
                return False
            after = self._enter(target, make=True)
            try:
                os.rename(name, new_name, src_dir_fd=before, dst_dir_fd=after)
                os.fsync(after)
            except FileNotFoundError:
                return False
            finally:
                os.close(before)
                os.close(after)
        return True

    def delete(self, key: str) -> None:
        folder, _, name = key.rpartition("/")
        with self._reported(key), suppress(FileNotFoundError):
            descriptor = self._enter(folder)
            try:
                os.unlink(name, dir_fd=descriptor)
            finally:
                os.close(descriptor)

    def clear(self, folder: str) -> None:
        above, _, name = folder.rpartition("/")
        with self._reported(folder), suppress(FileNotFoundError):
            descriptor = self._enter(above)
            try:
                shutil.rmtree(name, dir_fd=descriptor)  # documented to follow no links
            finally:
                os.close(descriptor)

    def _open(self, key: str, flags: int) -> int:
        folder, _, name = key.rpartition("/")
        descriptor = self._enter(folder)
        try:
            # Non-blocking: opening a pipe in the folder would otherwise wait for its other end.
            opened = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise StoreRefusedError(f"{key!r} of the store {self._name!r} is not a file.")
        return opened

    def _enter(self, folder: str, *, make: bool = False) -> int:
        """Return a descriptor of a folder below the root, opened part by part without following links."""
        try:
            descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise StoreAwayError(self._name) from None
        for part in folder.split("/") if folder else []:
            try:
                if part in ("", ".", ".."):
                    raise StoreRefusedError(f"{folder!r} leads out of the store {self._name!r}.")
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=descriptor)
                below = os.open(part, _FOLDER, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    @contextmanager
    def _reported(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise StoreRefusedError(f"There is no {key!r} in the store {self._name!r}.", code="store_missing") from None
        except PermissionError:
            raise StoreRefusedError(
                f"The store {self._name!r} gives no right to {key!r}; ask your operator for it."
            ) from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise StoreRefusedError(
                    f"{key!r} of the store {self._name!r} is, or lies behind, a symbolic link; links are not followed."
                ) from None
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFullError(f"the store {self._name!r} is full; free some space") from error
            raise ServiceError(f"the store {self._name!r} failed: {error.strerror or error}") from error


def _found(key: str, status: os.stat_result) -> Found:
    return Found(key=key, size_bytes=status.st_size, version=f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}")
