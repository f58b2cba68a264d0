"""Starts the processes of a stack for `tokenmill bench chaos`, one by one and without a supervisor."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from cli.embedded.child import Child, ChildSpec
from cli.embedded.postgres import prepare_postgres
from cli.embedded.valkey import prepare_valkey
from lab.chaos.stack import Server
from tokenmill.processes import command_of

_READY_SECONDS = 600.0  # on a busy machine all start at once


class BenchLauncher:
    """Creates processes with data, logs and sockets in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def postgres(self) -> Server:
        run = self._folder / "run" / "postgres"
        planned = prepare_postgres(self._folder / "postgres", log_path=self._log("postgres"), run_dir=run)
        return Server(
            process=Child(planned.spec), socket=planned.sockets / ".s.PGSQL.5432", folder=self._folder / "postgres"
        )

    def valkey(self) -> Server:
        folder = self._folder / "valkey"
        planned = prepare_valkey(folder, log_path=self._log("valkey"), run_dir=self._folder / "run" / "valkey")
        return Server(process=Child(planned.spec), socket=Path(urlsplit(planned.url).path), folder=folder)

    def role(self, name: str, *arguments: str, log: str, environment: Mapping[str, str]) -> Child:
        ready = self._folder / "run" / f"{log}.ready"
        return Child(
            ChildSpec(
                name=log,
                command=command_of("cli.main", name, "--ready-file", str(ready), *arguments),
                environment={**os.environ, **environment},
                log_path=self._log(log),
                is_ready=ready.exists,
                before_start=lambda: ready.unlink(missing_ok=True),
                ready_seconds=_READY_SECONDS,
                death_signal=signal.SIGKILL,
            )
        )

    def server(self, module: str, *arguments: str, log: str, environment: Mapping[str, str]) -> Server:
        """Plan a module that listens on a socket, which is its first argument."""
        folder = self._folder / "run"
        socket = folder / f"{log}.socket"
        spec = ChildSpec(
            name=log,
            command=command_of(module, str(socket), *arguments),
            environment={**os.environ, **environment},
            log_path=self._log(log),
            is_ready=socket.exists,
            before_start=lambda: socket.unlink(missing_ok=True),
            ready_seconds=_READY_SECONDS,
            death_signal=signal.SIGKILL,
        )
        return Server(process=Child(spec), socket=socket, folder=folder)

    def _log(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.log"
