"""Progress of a command that runs everything on this machine, observed from outside while it may be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from tests.forked.commands import program_of


def finished_lines(folder: Path) -> dict[int, str]:
    """Return the lines that have a result in the database of the folder `data`, with the time each was stored."""
    try:
        url = (folder / "data" / "run" / "database_url").read_text().strip()
        with psycopg.connect(url, connect_timeout=2) as connection:
            rows = connection.execute("SELECT line_no, xmin::text FROM result").fetchall()
    except (psycopg.Error, FileNotFoundError):
        return {}  # not there yet, or already ended
    return {int(line_no): str(xmin) for line_no, xmin in rows}


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the command, also one that runs in a fork, and wait for its end."""
    os.kill(program_of(process.pid), signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
