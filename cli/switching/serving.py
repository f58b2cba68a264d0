"""Serves one of several models at a time until it is asked to end: starts, watches and ends a worker for each turn."""

from __future__ import annotations

import logging
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.orm import Session, sessionmaker

from cli.switching.failures import Failures
from cli.switching.options import ServedName, WorkerCommand
from cli.switching.turn import Turn
from jobs import served_models
from jobs.chunks import fleet
from jobs.database import BRIEF_SECONDS, connect, sessions, transaction
from jobs.errors import NotFoundError, ServiceError
from jobs.scaling import switches
from jobs.scaling.switches import Announced, Models, OutOfServiceError
from jobs.settings import Settings

log = logging.getLogger(__name__)

DECIDE_SECONDS = 5.0
"""As often as the dispatcher measures."""
STEADY_SECONDS = 60.0
"""After a turn of this length earlier failures of its model no longer count."""
_POLL_SECONDS = 0.25
_END_SECONDS = 60.0
"""What a worker may take to end after its drain; then it is killed, since its memory is needed."""


def main(settings: Settings, *, models: Sequence[ServedName], command: WorkerCommand, ready_file: Path | None) -> None:
    """Serve the models until SIGTERM or SIGINT. Raises NotFoundError for a name without a path that is unknown."""
    maker = sessions(connect(settings.database_url, connections=1, idle_seconds=BRIEF_SECONDS))
    with transaction(maker) as session:
        for model in models:
            if model.path is None:
                served_models.find_model(session, model.name)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="tokenmill-worker-") as folder:
        worker = SwitchingWorker(
            sessions=maker,
            settings=settings,
            models=models,
            start=_starter(models, command, Path(folder) / "ready"),
            stop=stop,
            on_ready=lambda: None if ready_file is None else ready_file.touch(),
        )
        worker.run()


def _starter(models: Sequence[ServedName], command: WorkerCommand, ready_file: Path) -> Callable[[Announced], Turn]:
    by_name = {model.name: model for model in models}

    def start(announced: Announced) -> Turn:
        own = command.of(by_name[announced.model], worker_id=announced.worker_id, ready_file=ready_file)
        return Turn(own, ready_file)

    return start


@dataclass(slots=True, kw_only=True)
class SwitchingWorker:
    """Owns the worker of the present turn. `run` is called once, from the main thread."""

    sessions: sessionmaker[Session]
    settings: Settings
    models: Sequence[ServedName]
    start: Callable[[Announced], Turn]
    stop: threading.Event
    on_ready: Callable[[], object]
    monotonic: Callable[[], float] = time.monotonic
    _failures: Failures = field(init=False)
    _start_seconds: dict[str, float] = field(default_factory=dict, init=False)
    _row_id: str | None = field(default=None, init=False)
    """The row that stands for this worker now."""
    _kept_at: float = field(default=0.0, init=False)
    _decided_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._failures = Failures(self.monotonic)

    def run(self) -> None:
        """Serve until `stop` is set."""
        try:
            while not self.stop.is_set():
                upcoming = self._begin()
                while upcoming is not None and not self.stop.is_set():
                    upcoming = self._serve(upcoming)
        finally:
            self._sign_off(self._row_id)

    @property
    def _known(self) -> Models:
        return Models(
            names=[model.name for model in self.models],
            left_out=self._failures.reasons,
            paused=self._failures.paused,
            start_seconds=self._start_seconds,
        )

    def _begin(self) -> Announced | None:
        """Announce the model to serve first; without one, or without a database, wait a moment."""
        upcoming = None
        try:
            with transaction(self.sessions) as session:
                upcoming = switches.begin(session, self._known, before=self._row_id)
        except ServiceError as error:
            log.warning("database unreachable, no model is chosen error=%s", error)
        if upcoming is None:
            self._keep_row()
            self.stop.wait(self.settings.heartbeat_seconds)
        return self._decided(upcoming)

    def _decided(self, upcoming: Announced | None) -> Announced | None:
        if upcoming is not None:
            self._row_id, self._decided_at = upcoming.worker_id, self.monotonic()
        return upcoming

    def _serve(self, announced: Announced) -> Announced | None:
        """Serve a model until another one needs the worker more, and return that; None if the turn ended."""
        log.info("model is loaded model=%s worker_id=%s", announced.model, announced.worker_id)
        turn = self.start(announced)
        try:
            upcoming = self._watch(turn, announced)
            if upcoming is None and not self.stop.is_set():
                self._note_failure(announced, turn.reason())
            return upcoming
        except OutOfServiceError as error:
            self._end(turn)  # first, or it would go on with its row
            self._note_failure(announced, str(error))
            return None
        finally:
            self._end(turn)
            if self._row_id != announced.worker_id:
                self._sign_off(announced.worker_id)  # a killed one has not done it

    def _watch(self, turn: Turn, announced: Announced) -> Announced | None:
        """Wait until another model is to be served, and return that; None if the turn ended or is to end.

        Raises OutOfServiceError.
        """
        while not turn.is_ready:
            if self.stop.wait(_POLL_SECONDS) or turn.exit_code is not None:
                return None
            self._keep_row()
        began = self.monotonic()
        self._start_seconds[announced.model] = began - self._decided_at
        log.info("model is served model=%s start_seconds=%d", announced.model, began - self._decided_at)
        self.on_ready()
        look_at = began + DECIDE_SECONDS
        while not self.stop.wait(_POLL_SECONDS) and turn.exit_code is None:
            now = self.monotonic()
            if now - began >= STEADY_SECONDS:
                self._failures.forget(announced.model)
            if now >= look_at:
                look_at = now + DECIDE_SECONDS
                upcoming = self._switched(announced, served_seconds=now - began)
                if upcoming is not None:
                    return upcoming
        return None

    def _switched(self, serving: Announced, *, served_seconds: float) -> Announced | None:
        """Return the model to serve instead; None where the worker stays, as without a database.

        Raises OutOfServiceError.
        """
        try:
            with transaction(self.sessions) as session:
                upcoming = switches.switch(session, self._known, serving, served_seconds=served_seconds)
        except (ServiceError, NotFoundError) as error:  # its row may have been deleted while its machine slept
            log.warning("no other model is considered error=%s", error)
            return None
        if upcoming is not None:
            log.info("worker switches from=%s to=%s", serving.model, upcoming.model)
        return self._decided(upcoming)

    def _note_failure(self, announced: Announced, reason: str) -> None:
        pause = self._failures.add(announced.model, reason)
        log.error("model is left out model=%s again_seconds=%d reason=%s", announced.model, pause, reason)
        with self._in_transaction() as session:
            switches.wait(session, announced, self._known, reason=reason)

    def _end(self, turn: Turn) -> None:
        """Have the turn's worker drain and end; kill it if it does not."""
        turn.ask_to_end()
        deadline = self.monotonic() + self.settings.drain_seconds + _END_SECONDS
        while turn.exit_code is None:
            if self.monotonic() >= deadline:
                log.error("worker does not end and is killed")
                turn.kill()
            self._keep_row()
            time.sleep(_POLL_SECONDS)

    def _keep_row(self) -> None:
        """Keep the announced row alive, as often as a worker does."""
        if self._row_id is None or self.monotonic() - self._kept_at < self.settings.heartbeat_seconds:
            return
        self._kept_at = self.monotonic()
        with self._in_transaction() as session:
            switches.keep_announced(session, self._row_id)

    def _sign_off(self, worker_id: str | None) -> None:
        if worker_id is not None:
            with self._in_transaction() as session:
                fleet.stop(session, worker_id)

    @contextmanager
    def _in_transaction(self) -> Iterator[Session]:
        """Write to the own rows; without a database they stay as they are, and are dead soon."""
        try:
            with transaction(self.sessions) as session:
                yield session
        except ServiceError as error:
            log.warning("database unreachable, the worker's row stays as it is error=%s", error)
