"""A run at the control worker that has claimed it: its stores, and the answers of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from features.pipelines import stores
from features.pipelines.context import RunContext
from features.pipelines.external.store import ExternalStore
from features.pipelines.runs.claims import RunWork
from features.pipelines.step_rows import AnsweredRow, answered
from features.pipelines.tables import Run, RunStep, Store
from jobs import files
from jobs.errors import InputError
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Batch

OpenStore = Callable[..., ExternalStore]

_CHECKED_EVERY = 100  # rows between two checks of the claim


class RunFailedError(InputError):
    """A run fails; the message is its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRun:
    """A claimed run; each read of the database is a separate transaction."""

    work: RunWork
    context: RunContext
    storage: Storage
    settings: Settings
    open_store: OpenStore
    known_stores: dict[str, Store] = field(default_factory=dict)
    """Those that were read already, by name."""

    def store(self, name: str | None, *, writing: bool) -> ExternalStore:
        """Open a store of the run's tenant. Raise InputError if the tenant has none of this name."""
        assert name is not None
        store = self.known_stores.get(name) or self._read_store(name)
        return self.open_store(store, writing=writing, timeout_seconds=self.settings.storage_timeout_seconds)

    def _read_store(self, name: str) -> Store:
        with self.work.reading() as session:
            return stores.get_store(session, self.context.tenant_id, name)

    def answered(self, begun: RunStep) -> Iterator[AnsweredRow]:
        """Yield the rows of a step with their results. Raise RunFailedError if a file was deleted."""
        with self.work.reading() as session:
            keys = _answers_of(session, begun)
        rows = answered(self.storage, keys.rows_key, output_key=keys.output_key, errors_key=keys.errors_key)
        for number, row in enumerate(rows):
            if number % _CHECKED_EVERY == 0:
                self.work.check()
            yield row


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """The object keys of a finished step's rows and answers."""

    rows_key: str
    output_key: str | None
    errors_key: str | None


def _answers_of(session: Session, begun: RunStep) -> _Answers:
    """Return the object keys of a step. Raise RunFailedError if one of its files was deleted."""
    run = session.get_one(Run, begun.flow_id)
    batch = None if begun.batch_id is None else session.get_one(Batch, begun.batch_id)
    ids = [begun.rows_file_id, *((None, None) if batch is None else (batch.output_file_id, batch.error_file_id))]
    keys: list[str | None] = []
    for file_id in ids:
        file = None if file_id is None else files.find_kept(session, run.tenant_id, file_id)
        if file_id is not None and file is None:
            raise RunFailedError(
                f"the file {file_id!r} of step {begun.name!r} was deleted or has expired, so its answers are gone; "
                "trigger a new run"
            )
        keys.append(None if file is None else file.object_key)
    assert keys[0] is not None, "every step has its rows"
    return _Answers(rows_key=keys[0], output_key=keys[1], errors_key=keys[2])
