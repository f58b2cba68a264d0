"""Folders for unix sockets: the kernel allows about 107 bytes of path, and data directories may be deeper."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import tempfile
from pathlib import Path

from jobs.errors import ServiceError

MAX_FOLDER_BYTES = 84  # leaves room for /.s.PGSQL.5432.lock within the 107
_PLAIN = re.compile(r"/[\w./-]*", re.ASCII)  # libpq splits hosts at commas, Postgres unquotes its settings


def socket_folder(preferred: Path, *, uid: int | None = None) -> Path:
    """Create and return a folder of mode 0700, owned by `uid` (ours if None), for the sockets of a server.

    It is `preferred` if that is short and plain enough, otherwise a folder in the temporary directory with a name
    derived from it. Raises ServiceError if that folder belongs to another user.
    """
    folder = socket_path(preferred)
    owner = os.geteuid() if uid is None else uid
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (owner, os.geteuid()):
        raise ServiceError(f"{folder} belongs to another user. Remove it, or choose another --data-dir.")
    if status.st_uid != owner:
        os.chown(folder, owner, -1)
    folder.chmod(0o700)
    return folder


def socket_path(preferred: Path) -> Path:
    """Return the path of `socket_folder`."""
    preferred = preferred.absolute()
    if len(os.fsencode(preferred)) <= MAX_FOLDER_BYTES and _PLAIN.fullmatch(str(preferred)):
        return preferred
    digest = hashlib.sha256(os.fsencode(preferred)).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"tokenmill-{digest}")


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago; another process may take it before you do."""
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
