"""The data directory of an embedded stack: its layout, and the lock that one process holds."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.disk.file_lock import holding
from jobs.errors import ConflictError, InputError


class InUseError(ConflictError):
    """Another process holds the lock of a data directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDir:
    """Paths below `root`. Each part that holds content is closed to other users."""

    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def valkey(self) -> Path:
        return self.root / "valkey"

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def database_ready(self) -> Path:
        """Exists once the database of a running stack may be used."""
        return self.run / "database.ready"

    @property
    def database_url(self) -> Path:
        """Read by `tokenmill audit` and others while a stack runs."""
        return self.run / "database_url"

    @property
    def owner_url(self) -> Path:
        """The same for commands that need the owner of the database."""
        return self.run / "database_owner_url"

    @property
    def key_file(self) -> Path:
        return self.root / "api_key"

    @property
    def lock_file(self) -> Path:
        return self.root / "lock"


@contextmanager
def locked(root: Path) -> Iterator[DataDir]:
    """Create `root` if needed and hold its lock. Raises InputError (unusable) or InUseError."""
    root = root.expanduser().absolute()
    data_dir = DataDir(root=root)
    with ExitStack() as closing:
        try:
            root.mkdir(parents=True, exist_ok=True)
            for part in (data_dir.objects, data_dir.logs):
                part.mkdir(mode=0o700, exist_ok=True)
            data_dir.run.mkdir(exist_ok=True)
            _require_kinds(data_dir)
            closing.enter_context(holding(data_dir.lock_file, taken=lambda pid: _in_use(root, pid)))
        except OSError as error:
            raise InputError(
                f"cannot use {root} as data directory ({error.strerror}). Choose another with --data-dir."
            ) from None
        yield data_dir


def _require_kinds(data_dir: DataDir) -> None:
    """Raise OSError if something else is in the place of a part that is created later."""
    for folder in (data_dir.postgres, data_dir.valkey):
        if os.path.lexists(folder) and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder")
    if data_dir.key_file.is_dir():
        raise IsADirectoryError(errno.EISDIR, f"{data_dir.key_file} is a folder")


def _in_use(root: Path, pid: str) -> InUseError:
    return InUseError(f"{root} is in use by another tokenmill (pid {pid}). Stop it, or choose another --data-dir.")


def write_secret(path: Path, secret: str) -> None:
    """Write `secret` to `path` atomically, readable only by this user."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def default_data_dir() -> Path:
    """Return TOKENMILL_DATA_DIR, or the XDG data directory of the user."""
    path = os.environ.get("TOKENMILL_DATA_DIR")
    if path:
        return Path(path)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "tokenmill"
