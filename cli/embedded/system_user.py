"""Chooses the system user for Postgres, which refuses to run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from cli.embedded.child import SystemUser, launch_command
from jobs.errors import ServiceError

_NAMES = ("tokenmill", "postgres")


def user_for_postgres(data_dir: Path) -> SystemUser | None:
    """Return None if we are not root; otherwise the owner of `data_dir` if that is not root, otherwise a system user.

    Raises ServiceError if none exists and none can be created.
    """
    if os.geteuid() != 0:
        return None
    owner = data_dir.stat()
    if owner.st_uid != 0:
        return SystemUser(uid=owner.st_uid, gid=owner.st_gid)
    entry = _existing() or _made()
    return SystemUser(uid=entry.pw_uid, gid=entry.pw_gid)


def can_run(user: SystemUser, program: Path, *, folder: Path) -> bool:
    """Return whether `user` can enter `folder` and run `program --version` (with all its libraries)."""
    command = ["/bin/sh", "-c", 'cd "$1" && exec "$2" --version', "sh", str(folder), str(program)]
    answer = subprocess.run(
        launch_command(command, death_signal=9, user=user), capture_output=True, check=False, cwd="/"
    )
    return answer.returncode == 0


def _existing() -> pwd.struct_passwd | None:
    for name in _NAMES:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def _made() -> pwd.struct_passwd:
    useradd = shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if useradd is not None:
        name = _NAMES[0]
        subprocess.run([useradd, "--system", "--no-create-home", name], capture_output=True, check=False)
        made = _existing()
        if made is not None:
            return made
    raise ServiceError(
        "Postgres does not run as root, and no system user could be created for it. "
        f"Run {Path(sys.argv[0]).name} as an ordinary user, or create a system user named {_NAMES[0]!r} first."
    )
