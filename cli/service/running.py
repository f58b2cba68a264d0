"""The service that runs on a data directory: the models that it serves, and who keeps it running."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.data_dir import DataDir
from cli.embedded.note import StackNote, running_stack_of
from cli.served_model import DEMO_NAME, ServedModel, choose_model
from jobs.errors import InputError, ServiceError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    """The service that runs on a data directory."""

    data_dir: DataDir
    note: StackNote
    models: Mapping[str, str]
    """The models that a live worker serves: paths by name."""

    def served(self, model: str | None, *, name: str | None = None) -> ServedModel:
        """Return the served model of `--model`; with `name`, the one that lines name. Raises InputError if it lacks it.

        Without both it is the only model.
        """
        if name is not None:
            return self._named(name, model)
        if model is None:
            if len(self.models) != 1:
                raise self._lacking("no model was given")
            return self._of(next(iter(self.models)))
        if model in self.models:
            return self._of(model)
        path = _path_of(model)
        for served_name, served_path in self.models.items():
            if _is_same(served_path, path):
                return self._of(served_name)
        raise self._lacking(f"it does not serve {model}")

    def _named(self, name: str, model: str | None) -> ServedModel:
        if name not in self.models:
            raise self._lacking(f"it does not serve {name!r}, which the lines name")
        if model is not None and model != name and not _is_same(self.models[name], path := _path_of(model)):
            raise self._lacking(f"its model {name!r}, which the lines name, is {self.models[name]}, not {path}")
        return self._of(name)

    def _of(self, name: str) -> ServedModel:
        return ServedModel(name=name, path=self.models[name])

    def _lacking(self, problem: str) -> InputError:
        served = ", ".join(f"{name} ({path})" for name, path in self.models.items()) or "none now"
        if self.note.is_of_command:
            advice = "Wait for the end of the command that runs it, or choose another folder with --data-dir"
        else:
            advice = (
                "Name one of them, stop the service and run the same command again, start a worker for the model with "
                "`tokenmill worker`, or choose another folder with --data-dir"
            )
        where = f"a service runs on {self.data_dir.root} (pid {self.note.pid})"
        return InputError(f"{where}, and {problem}. It serves: {served}. {advice}.", param="model")

    def require_running(self) -> None:
        """Raise ServiceError once the command that runs the service has ended: it does not come back by itself."""
        note = running_stack_of(self.data_dir.root)
        if note is None or note.pid != self.note.pid:
            raise ServiceError(
                f"the command that ran the service on {self.data_dir.root} (pid {self.note.pid}) has ended. What was "
                "submitted is kept: run the same command again to resume."
            )


def find_running(root: Path) -> RunningService | None:
    """Return the service that runs on a data directory, or None."""
    note = running_stack_of(root)
    if note is None:
        return None
    data_dir = DataDir(root=root.expanduser().absolute())
    return RunningService(data_dir=data_dir, note=note, models=_live_models(note))


def _live_models(note: StackNote) -> dict[str, str]:
    from jobs import served_models
    from jobs.chunks import fleet
    from jobs.database import connect, sessions, transaction

    engine = connect(note.environment["TOKENMILL_DATABASE_URL"])
    try:
        with transaction(sessions(engine)) as session:
            live = set(fleet.live_models(session))
            return {model.name: model.path for model in served_models.list_models(session) if model.name in live}
    finally:
        engine.dispose()


def _path_of(model: str) -> str:
    return choose_model(None if model == DEMO_NAME else model).path


def _is_same(path: str, other: str) -> bool:
    """Compare paths, or hub ids."""
    return path == other or (Path(path).exists() and Path(path).resolve() == Path(other).resolve())


@contextmanager
def using(data_dir: DataDir) -> Iterator[bool]:
    """Keep the service of another command running for a block; False if it is ending already."""
    with _users(data_dir) as users:
        yield _is_locked(users, fcntl.LOCK_SH)


@contextmanager
def without_users(data_dir: DataDir, *, wait: Callable[[], object]) -> Iterator[None]:
    """Wait until no other command uses the service; in the block none begins to. `wait` runs between tries."""
    with _users(data_dir) as users:
        while not _is_locked(users, fcntl.LOCK_EX):
            wait()
        yield


@contextmanager
def _users(data_dir: DataDir) -> Iterator[int]:
    users = os.open(data_dir.run / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield users
    finally:
        os.close(users)


def _is_locked(number: int, kind: int) -> bool:
    try:
        fcntl.flock(number, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
