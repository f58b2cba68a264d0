"""Finds servers that outlived the process that started them."""

from __future__ import annotations

from pathlib import Path

import psutil

from jobs.errors import ServiceError

OLD_SERVER_SECONDS = 30.0  # a Postgres that was busy may write that long before it ends


def wait_for_old_server(folder: Path, *, program: str, seconds: float = OLD_SERVER_SECONDS) -> None:
    """Wait until no `program` works in `folder`; a killed parent's server is on its way down.

    Raises ServiceError where it stays.
    """
    _, alive = psutil.wait_procs(_working_in(folder, program), timeout=seconds)
    if alive:
        raise ServiceError(
            f"a {program} (pid {alive[0].pid}) still runs on {folder}. Stop it, or choose another --data-dir."
        )


def _working_in(folder: Path, program: str) -> list[psutil.Process]:
    """Both servers make their data folder their current directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.name().startswith(program) and process.cwd() == str(folder):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
