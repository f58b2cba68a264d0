"""Waits for servers that outlived their parent."""

from __future__ import annotations

from pathlib import Path

import psutil

from jobs.errors import ServiceError

OLD_SERVER_SECONDS = 30.0  # a busy Postgres may write that long before it ends


def wait_for_old_server(folder: Path, *, program: str, seconds: float = OLD_SERVER_SECONDS) -> None:
    """Wait until no `program` runs in `folder`; the server of a killed parent is shutting down.

    Raises ServiceError if it does not end.
    """
    _, alive = psutil.wait_procs(_working_in(folder, program), timeout=seconds)
    if alive:
        raise ServiceError(
            f"a {program} (pid {alive[0].pid}) still runs on {folder}. Stop it, or choose another --data-dir."
        )


def _working_in(folder: Path, program: str) -> list[psutil.Process]:
    """Return the processes of a program in a folder: both servers change into their data folder."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.name().startswith(program) and process.cwd() == str(folder):
                processes.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return processes
