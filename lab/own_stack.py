"""A benchmark's own stack: `tokenmill up` of any revision in a temporary folder."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
import psycopg

from benchmarks.service import Batches

_EXPORT = re.compile(r"export TOKENMILL_BASE_URL=(\S+) TOKENMILL_API_KEY=(\S+)")
_STOP_SECONDS = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStack:
    """A running `tokenmill up` that serves a model as `demo`."""

    pid: int
    base_url: str
    api_key: str
    database_url: str
    data_dir: Path
    connection: psycopg.Connection[Any]
    """For queries to its Postgres: with a new connection for each, Postgres would start a process for each."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"}

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.base_url, api_key=self.api_key)

    def batches(self) -> Batches:
        return Batches(self.client(), "demo")

    def query(self, sql: str, *values: object) -> Any:
        """Return the first column of the first row."""
        return self.connection.execute(sql, values).fetchall()[0][0]

    def role(self, name: str) -> psutil.Process:
        """Return the process of a role."""
        children = psutil.Process(self.pid).children(recursive=True)
        return next(child for child in children if {"cli.main", name} <= set(child.cmdline()))


@contextmanager
def own_stack(tokenmill: str, *arguments: str, environment: Mapping[str, str]) -> Iterator[OwnStack]:
    """Start `tokenmill up` with further arguments and variables, and stop it. Exits if it does not start."""
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        process = subprocess.Popen(
            [tokenmill, "up", "--data-dir", folder, "--port", str(free_port()), "--served-name", "demo", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        with process:
            try:
                assert process.stdout is not None
                match = _EXPORT.match(process.stdout.readline())
                if match is None:
                    raise SystemExit("the stack did not start; its messages are above")
                database_url = (Path(folder) / "run" / "database_url").read_text().strip()
                with psycopg.connect(database_url, autocommit=True) as connection:
                    yield OwnStack(
                        pid=process.pid,
                        base_url=match[1],
                        api_key=match[2],
                        database_url=database_url,
                        data_dir=Path(folder),
                        connection=connection,
                    )
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(_STOP_SECONDS)


def tokenmill_here() -> str:
    """Return the command of this environment."""
    return str(Path(sys.executable).with_name("tokenmill"))


def free_port() -> int:
    """Return a port that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
