"""Deletes runs: those that ended long ago, and one that its owner deletes.

The files that incremental sources have taken stay recorded as long as their pipeline.

Their files expire by themselves, and their batches stay like all batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines.lifecycle import RUNS
from flows.rows import forget
from jobs.database import transaction
from jobs.errors import ConflictError
from jobs.purges import Purge
from jobs.settings import Settings
from jobs.storage import Storage

_RUNS = 50
"""Runs per transaction: each may have taken thousands of files, whose rows stay locked until it ends."""


def purges(maker: sessionmaker[Session], _storage: Storage, settings: Settings) -> Sequence[Purge]:
    """Return the purges of runs, for `Feature.purges`."""
    age = timedelta(days=settings.run_days)
    return (Purge(what="old runs", chore="forget runs", step=lambda: purge_runs(maker, age=age)),)


def purge_runs(maker: sessionmaker[Session], *, age: timedelta) -> int:
    """Delete the runs that ended longer ago than `age`; return their number.

    A pipeline's last successful run stays, as the next one's interval begins where it ended.
    """
    num_purged = 0
    while True:
        with transaction(maker) as session:
            run_ids = session.scalars(_OLD, {"age": age, "limit": _RUNS}).all()
            if not run_ids:
                return num_purged
            _forget(session, run_ids)
        num_purged += len(run_ids)


def delete_run(session: Session, tenant_id: str, run_id: str) -> None:
    """Delete a run that has ended; its published files and its batches stay.

    Raise NotFoundError, or ConflictError if it has not ended or is its pipeline's last successful run.
    """
    run = RUNS.lock_to_delete(session, tenant_id, run_id)
    if session.scalar(_IS_LAST, {"run_id": run.id}):
        message = "Cannot delete the last successful run of a pipeline: the next one begins where it ended."
        raise ConflictError(message, code="run_not_deletable")
    _forget(session, [run.id])


def _forget(session: Session, run_ids: Sequence[str]) -> None:
    for statement in (_DELETE_UNDONE, *_DELETE_SUPERSEDED, _KEEP_DONE, _DELETE_OF_DELETED):
        session.execute(statement, {"run_ids": list(run_ids)})
    forget(session, run_ids)


_HAS_LAST_END = """
    flow.state = 'succeeded' AND pipeline.deleted_at IS NULL AND NOT EXISTS (
        SELECT FROM run AS later JOIN flow AS ended ON ended.id = later.id
        WHERE later.pipeline_id = run.pipeline_id AND ended.state = 'succeeded'
            AND (later.interval_end, later.id) > (run.interval_end, run.id)
    )
"""
_JOINED = "flow JOIN run ON run.id = flow.id JOIN pipeline ON pipeline.id = run.pipeline_id"
_IS_LAST = text(f"SELECT {_HAS_LAST_END} FROM {_JOINED} WHERE flow.id = :run_id")

# A run that is being resumed is locked or no longer has an end.
_OLD = text(f"""
    SELECT flow.id FROM {_JOINED}
    WHERE flow.recipe = 'run' AND flow.ended_at < now() - CAST(:age AS interval)
        AND flow.state IN ('succeeded', 'failed', 'cancelled', 'skipped') AND NOT ({_HAS_LAST_END})
    ORDER BY flow.ended_at, flow.id LIMIT :limit FOR UPDATE OF flow SKIP LOCKED
""")

_DELETE_UNDONE = text("DELETE FROM dataset_file WHERE run_id = ANY(:run_ids) AND done_at IS NULL")

# A file that was changed and taken again: its earlier version is not needed any more.
# Two statements, to use the index: versions that these runs took, and versions that they superseded.
_DELETE_SUPERSEDED = [
    text(f"""
        DELETE FROM dataset_file AS old USING dataset_file AS new
        WHERE {known}.run_id = ANY(:run_ids) AND old.done_at < new.done_at
            AND old.pipeline_id = new.pipeline_id AND old.step = new.step AND old.key = new.key
    """)
    for known in ("old", "new")
]

_KEEP_DONE = text("UPDATE dataset_file SET run_id = NULL WHERE run_id = ANY(:run_ids)")

_DELETE_OF_DELETED = text("""
    DELETE FROM dataset_file WHERE run_id IS NULL AND pipeline_id IN (
        SELECT pipeline.id FROM run JOIN pipeline ON pipeline.id = run.pipeline_id
        WHERE run.id = ANY(:run_ids) AND pipeline.deleted_at IS NOT NULL
    )
""")
