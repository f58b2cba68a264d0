"""Roles as their own processes, a dispatcher in the test's process, and waits for conditions in the database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import Settings
from jobs.storage import Storage
from workers.app import make_app
from workers.dispatcher import Dispatcher
from workers.hints import HintSender

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 120


class RoleProcess(subprocess.Popen[bytes]):
    """`tokenmill` with these arguments; its log is written to a file."""

    def __init__(self, *arguments: str, settings: Settings, log: Path, more: dict[str, str] | None = None) -> None:
        self.log = log
        environment = {
            f"TOKENMILL_{name.upper()}": str(value) for name, value in settings.model_dump(exclude_none=True).items()
        }
        with log.open("ab") as out:
            super().__init__(
                [sys.executable, "-m", "cli.main", *arguments],
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env=os.environ | environment | (more or {}),
            )

    def stop(self) -> int:
        """Stop it, and return its exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait(WAIT_SECONDS)


class Watch:
    """Polls the database until a condition holds."""

    def __init__(self, maker: sessionmaker[Session], log: Path) -> None:
        self._maker = maker
        self._log = log

    def value(self, sql: str) -> Any:
        with self._maker() as session:
            return session.execute(text(sql)).scalar()

    def until(self, sql: str) -> None:
        for _ in range(WAIT_SECONDS * 20):
            if self.value(sql):
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"never: {sql}\n{self._log.read_text()[-3000:]}")


@contextmanager
def ended(started: list[RoleProcess]) -> Iterator[None]:
    """Kill the processes that still run at the end."""
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def dispatching(maker: sessionmaker[Session], storage: Storage, settings: Settings, redis_url: str) -> Iterator[None]:
    """Run a dispatcher in a thread: lost leases come back."""
    stop = threading.Event()
    dispatcher = Dispatcher(maker, storage, hints=HintSender(make_app(redis_url)), settings=settings)
    thread = threading.Thread(target=dispatcher.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def stored_in(folder: Path) -> Storage:
    """Return a store on disk, because the role is another process."""
    folder.mkdir()
    return Storage(folder.as_uri())


def hasty_settings(database_url: str, redis_url: str, storage: Storage, **given: Any) -> Settings:
    """Return settings of roles that poll and flush often, and lose their leases soon."""
    return Settings(
        database_url=database_url,
        redis_url=redis_url,
        storage_url=storage.url,
        claim_alone_seconds=0.5,
        heartbeat_seconds=0.5,
        flush_seconds=0.1,
        flush_results=4,
        lease_seconds=2,
        drain_seconds=0.5,
        dispatch_seconds=0.1,
        **given,
    )
