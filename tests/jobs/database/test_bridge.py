"""Tests of databases from before the baseline, upgraded in place: nothing is lost, and work in progress continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from flows.due import find_due
from jobs.access import arrange
from jobs.audit.audit import audit
from jobs.batches import sweeps
from jobs.chunks import claiming, leasing
from jobs.database import connect, head_revision, is_ready, sessions, transaction, upgrade
from jobs.errors import ServiceError
from jobs.states import BatchState
from jobs.storage import Storage
from jobs.tables import Batch, File
from migrations import bridge
from tests import old_databases
from tests.jobs.batches.control import finalise
from tests.jobs.chunks.builders import LEASE, answer, reap

pytestmark = pytest.mark.changes_schema

Old = Callable[[str], Engine]


@pytest.fixture
def old(empty_database: str) -> Iterator[Old]:
    """Return a function that makes the empty database an old one, and returns its engine."""
    engine = connect(empty_database, connections=20)

    def make(revision: str) -> Engine:
        old_databases.load(empty_database, revision)
        return engine

    yield make
    engine.dispose()


def dump(pg_dump: Path, url: str, *more: str) -> str:
    command = [str(pg_dump), "--restrict-key=x", "--exclude-table=result_2*", *more, url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("revision", old_databases.REVISIONS)
def test_a_schema_that_was_taken_over_is_that_of_a_new_database(
    old: Old, revision: str, empty_database: str, database_url: str, pg_dump: Path
) -> None:
    """Object by object: columns in their order, defaults, constraints, functions, owners, grants."""
    old(revision)
    assert upgrade(empty_database) == head_revision()
    assert arrange(empty_database) is None
    schema = dump(pg_dump, empty_database, "--schema-only")
    assert schema == dump(pg_dump, database_url, "--schema-only")
    assert schema.count("CREATE TABLE") > 50
    assert schema.count("GRANT ") > 70


# Rows that old code wrote differently, or not at all: every second bill rounded, and more that it did not have.
AGED = """
    UPDATE ledger SET cost_micros = ceil(cost_picos / 1000000), cost_picos = 0, input_price_micros = NULL,
        output_price_micros = NULL, cached_input_price_micros = NULL WHERE id % 2 = 0;
    UPDATE ledger SET priority = NULL, num_truncated = NULL WHERE id % 3 = 0;
    UPDATE batch SET cost_micros = own.micros, cost_picos = own.picos FROM (
        SELECT batch_id, sum(cost_micros) AS micros, sum(cost_picos) AS picos FROM ledger GROUP BY batch_id
    ) AS own WHERE batch_id = id;
    UPDATE window_budget SET spent_amount = (SELECT sum(cost_micros * 1000000.0 + cost_picos) FROM ledger);
    UPDATE extraction_stage SET name = NULL WHERE extraction_id = '{ended}';
    UPDATE batch SET run_id = NULL;
    UPDATE file SET filename = 'anna.jsonl' WHERE deleted_at IS NOT NULL;
    UPDATE upload SET file_id = (SELECT id FROM file WHERE deleted_at IS NOT NULL LIMIT 1)
"""


def age(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(AGED.format(ended=old_databases.ENDED_EXTRACTION)))


BILLS = """
    SELECT batch_id, CAST(created_at AS date) AS day, model, sum(num_results), sum(input_tokens), sum(cached_tokens),
        sum(output_tokens), sum(num_entries), sum(worker_microseconds), {amount}
    FROM ledger GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


def bills(connection: Connection, amount: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(text(BILLS.format(amount=amount)))]


def contents(connection: Connection) -> dict[str, Any]:
    """Return, by table and column, a digest of all values, in the order of the rows' keys."""
    found = {}
    for table, column in connection.execute(text(COLUMNS)).all():
        key = connection.scalar(text(KEY), {"table": table})
        found[f"{table}.{column}"] = digest(connection, f'"{table}"', column, key=key)
    return found


def digest(connection: Connection, rows: str, column: str, *, key: str) -> tuple[Any, ...]:
    values = f"""coalesce(CAST("{column}" AS text), '-'), '|' ORDER BY {key}"""
    return tuple(connection.execute(text(f"SELECT count(*), md5(string_agg({values})) FROM {rows}")).one())


OF_FLOW = ("tenant_id", "state", "reason", "api_key_id", "idempotency_key", "created_at", "ended_at", "claim_fence")
OF_NODE = {
    "run_step": ("run", {"run_id": "flow_id", "step_no": "number", "name": "name", "batch_id": "batch_id"}),
    "extraction_stage": ("extraction", {"extraction_id": "flow_id", "number": "number", "num_lines": "num_lines"}),
    "passage_index_stage": ("index", {"passage_index_id": "flow_id", "number": "number", "num_lines": "num_lines"}),
}


def contents_of_flows(connection: Connection) -> dict[str, Any]:
    """Return the digests of what lies in tables of flows, by the columns where it lay before."""
    found = {}
    for table, recipe in (("run", "run"), ("extraction", "extraction"), ("passage_index", "index")):
        fingerprint = [] if recipe == "run" else ["fingerprint"]
        for column in (*OF_FLOW, *fingerprint):
            rows = f"flow WHERE recipe = '{recipe}'"
            found[f"{table}.{column}"] = digest(connection, rows, column, key="id")
    for table, (recipe, columns) in OF_NODE.items():
        for before, column in (columns | {"batch_id": "batch_id", "done_at": "done_at"}).items():
            rows = f"flow_node WHERE recipe = '{recipe}'"
            found[f"{table}.{before}"] = digest(connection, rows, column, key="flow_id, number")
    return found


COLUMNS = """
    SELECT relname, attname FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition AND attnum > 0
        AND NOT attisdropped ORDER BY 1, 2
"""
KEY = """
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_index
    JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)
    WHERE indrelid = CAST(:table AS regclass) AND indisprimary
"""
CHANGED = {
    "alembic_version.version_num",
    "schema_floor.revision",
    "batch.cost_picos",
    "batch.num_computed",
    "batch.run_id",
    "extraction_stage.name",
    "file.filename",
    "upload.filename",
    "worker.running_lines",
    "forecast.earliest_seconds",
    "forecast.latest_seconds",
}
NOT_BY_COLUMN = ("ledger.", "serving_rate.", "queue_count.")
"""Ledger entries are compared by their sums; the others are measured again."""
RENAMED = {f"model.{name}_price_micros": f"model.{name}_price_picos" for name in ("input", "output", "cached_input")}
"""Their numbers stay: micro-units per million tokens are pico-units per token."""


@pytest.mark.parametrize("revision", old_databases.REVISIONS)
def test_sums_ids_and_keys_of_objects_are_what_they_were(old: Old, revision: str, empty_database: str) -> None:
    engine = old(revision)
    age(engine)
    with engine.connect() as connection:
        before, billed = contents(connection), bills(connection, "sum(cost_micros * 1000000.0 + cost_picos)")
        ids = connection.scalars(text("SELECT id FROM ledger ORDER BY 1")).all()
    upgrade(empty_database)
    with engine.connect() as connection:
        after = contents(connection) | contents_of_flows(connection)
        assert bills(connection, "sum(cost_picos)") == billed
        assert connection.scalars(text("SELECT id FROM ledger WHERE id > 0 ORDER BY 1")).all() == ids
        assert connection.scalar(text("SELECT count(*) FROM ledger WHERE id < 0")) > 0, "what a division leaves over"
    assert len(billed) > 5
    before = {RENAMED.get(name, name): content for name, content in before.items()}
    assert {*RENAMED.values()} <= before.keys() & after.keys()
    kept = {name for name in before.keys() & after.keys() - CHANGED if not name.startswith(NOT_BY_COLUMN)}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert {"file.id", "file.object_key", "chunk.fence", "review.verdict", "extraction.state", "run.reason"} <= kept
    assert {"run_step.batch_id", "extraction_stage.done_at", "passage_index_stage.num_lines"} <= kept
    assert all(before[name][0] for name in ("run.state", "extraction.state", "passage_index.state", "run_step.name"))


@pytest.mark.parametrize("revision", old_databases.REVISIONS)
def test_what_was_noted_otherwise_is_noted_as_it_is_read_now(old: Old, revision: str, empty_database: str) -> None:
    engine = old(revision)
    with engine.begin() as connection:
        connection.execute(text("UPDATE forecast SET seconds = 60"))
        stages = connection.execute(text(STAGES)).all()
        runs = connection.execute(text("SELECT id, run_id FROM batch WHERE run_id IS NOT NULL ORDER BY 1")).all()
    age(engine)
    upgrade(empty_database)
    with sessions(engine)() as session:
        assert session.execute(text(NODES)).all() == stages
        assert session.execute(text("SELECT id, run_id FROM batch WHERE run_id IS NOT NULL ORDER BY 1")).all() == runs
        assert session.scalar(text("SELECT count(*) FROM file WHERE deleted_at IS NOT NULL AND filename <> ''")) == 0
        assert session.scalars(text("SELECT filename FROM upload")).all() == [""]
        truncated = "SELECT sum(num_truncated) FROM"
        assert session.scalar(text(f"{truncated} ledger")) == session.scalar(text(f"{truncated} batch"))
        assert (
            session.scalar(text("SELECT count(*) FROM forecast WHERE earliest_seconds IS NULL AND seconds IS NOT NULL"))
            == 0
        )
        assert session.scalar(text("SELECT count(*) FROM queue_count")) == 0
        live = session.get_one(Batch, old_databases.LIVE_BATCH)
        assert live.num_computed == live.num_completed > 0
    with sessions(engine)() as session:
        assert audit(session) == []


STAGES = "SELECT extraction_id, number, name FROM extraction_stage ORDER BY 1, 2"
NODES = "SELECT flow_id, number, name FROM flow_node WHERE recipe = 'extraction' ORDER BY 1, 2"


def test_a_live_batch_is_answered_to_its_end(old: Old, empty_database: str, tmp_path: Path) -> None:
    engine = old("0061")
    upgrade(empty_database)
    storage = Storage(tmp_path.as_uri())
    with sessions(engine)() as session:
        batch = session.get_one(Batch, old_databases.LIVE_BATCH)
        finished = batch.num_completed
        file = session.get_one(File, batch.input_file_id)
        assert file.size_bytes == len(old_databases.live_input())
        storage.put(file.object_key, old_databases.live_input())
        reap(session, storage)
        while ready := open_chunks(session):
            answer_all(session, ready[0])
        sweeps.finish_ready(session)
        assert finalise(session, storage, batch.id) is BatchState.COMPLETED
        assert (finished, batch.num_completed, batch.num_failed) == (68, 400, 0)
        assert session.get_one(File, batch.output_file_id).size_bytes > 0
    with sessions(engine)() as session:
        assert audit(session) == []


def test_flows_under_way_go_on_whoever_had_claimed_them(old: Old, empty_database: str) -> None:
    """Their old workers were killed in the middle: the claim goes, the open node stays, and nothing is begun twice."""
    engine = old("0061")
    live = [old_databases.LIVE_EXTRACTION, old_databases.LIVE_RUN]
    with engine.begin() as connection:
        for statement in BETWEEN_STEPS:
            connection.execute(text(statement), {"id": old_databases.LIVE_RUN})
        for table in ("extraction", "run"):
            connection.execute(text(CLAIM.format(table=table)), {"ids": live})
        opened = [tuple(row) for row in connection.execute(text(OPEN_NODES), {"ids": live})]
        num_batches = connection.scalar(text("SELECT count(*) FROM batch"))
    assert [flow_id for flow_id, _, _ in opened] == [old_databases.LIVE_EXTRACTION], "the run is between two steps"
    upgrade(empty_database)
    with sessions(engine).begin() as session:
        assert [due.id for due in find_due(session, ["run", "extraction"])] == [old_databases.LIVE_RUN]
        rows = session.execute(text("SELECT claim_fence, claimed_by FROM flow WHERE id = ANY(:ids)"), {"ids": live})
        assert {tuple(row) for row in rows} == {(8, None)}
        kept = text("SELECT flow_id, number, batch_id FROM flow_node WHERE done_at IS NULL AND flow_id = ANY(:ids)")
        assert [tuple(row) for row in session.execute(kept, {"ids": live})] == opened
        session.execute(text("UPDATE batch SET state = 'completed' WHERE id = :id"), {"id": opened[0][2]})
    with sessions(engine)() as session:
        assert {due.id for due in find_due(session, ["run", "extraction"])} == set(live)
        assert session.scalar(text("SELECT count(*) FROM batch")) == num_batches


BETWEEN_STEPS = (
    "DELETE FROM run_step WHERE run_id = :id AND step_no = 1",
    "UPDATE run SET state = 'running', ended_at = NULL WHERE id = :id",
)
CLAIM = """
    UPDATE {table} SET claim_fence = 8, claimed_by = 'claim_old', claimed_until = now() + interval '1 hour'
    WHERE id = ANY(:ids)
"""
OPEN_NODES = """
    SELECT extraction_id, number, batch_id FROM extraction_stage WHERE done_at IS NULL AND extraction_id = ANY(:ids)
    UNION ALL SELECT run_id, step_no, batch_id FROM run_step WHERE done_at IS NULL AND run_id = ANY(:ids)
"""


def test_lookups_for_batches_go_on_and_those_of_ended_batches_are_stopped(old: Old, empty_database: str) -> None:
    engine = old("0061")
    with engine.begin() as connection:
        ids = connection.scalars(text("SELECT id FROM batch ORDER BY id LIMIT 7")).all()
        for batch_id, state in zip(ids, STATES, strict=True):
            connection.execute(text("UPDATE batch SET state = :state WHERE id = :id"), {"id": batch_id, "state": state})
        for batch, number, kind, stage in LOOKUPS:
            model = "minilm" if kind == "embed" else None
            values = {"id": ids[batch], "number": number, "kind": kind, "model": model, "stage": ids[stage]}
            connection.execute(text("INSERT INTO batch_stage VALUES (:id, :number, :kind, :model, :stage)"), values)
        filled = {"id": ids[5]}
        connection.execute(text("UPDATE batch SET source_file_id = input_file_id WHERE id = :id"), filled)
    upgrade(empty_database)
    fills = [f"fill_{batch_id.removeprefix('batch_')}" for batch_id in (ids[0], ids[3], ids[5])]
    with sessions(engine)() as session:
        held = session.execute(text("SELECT id, held_by FROM batch WHERE held_by IS NOT NULL")).all()
        assert [tuple(row) for row in held] == [(ids[0], fills[0])]
        rows = session.execute(text("SELECT flow.id, state, models FROM passage_fill JOIN flow USING (id) ORDER BY 1"))
        assert [tuple(row) for row in rows] == [
            (fills[0], "in_progress", ["minilm"]),
            (fills[1], "cancelling", []),
            (fills[2], "completed", ["minilm"]),
        ]
        nodes = text("SELECT flow_id, name, batch_id FROM flow_node WHERE recipe = 'fill' ORDER BY flow_id, number")
        assert [tuple(row) for row in session.execute(nodes)] == [
            (fills[0], "embed", ids[1]),
            (fills[0], "find", ids[2]),
            (fills[1], "find", ids[4]),
            (fills[2], "embed", ids[6]),
        ]
        assert [due.id for due in find_due(session, ["fill"])] == [], "lookups run, or are being cancelled"
        session.execute(text("UPDATE batch SET state = 'completed' WHERE id = ANY(:ids)"), {"ids": [ids[2], ids[4]]})
        assert [due.id for due in find_due(session, ["fill"])] == fills[:2]


STATES = ("validating", "completed", "in_progress", "cancelled", "cancelling", "in_progress", "completed")
LOOKUPS = ((0, 0, "embed", 1), (0, 1, "find", 2), (3, 0, "find", 4), (5, 0, "embed", 6))
"""Batch, number, kind and lookup's batch; the batch 5 is filled."""


def open_chunks(session: Session) -> list[int]:
    query = text("SELECT id FROM chunk WHERE batch_id = :id AND state = 'ready' ORDER BY id")
    return list(session.scalars(query, {"id": old_databases.LIVE_BATCH}))


def answer_all(session: Session, chunk_id: int) -> None:
    claim = claiming.claim_chunk(session, chunk_id, worker_id="w1", lease=LEASE)
    assert claim is not None
    done = leasing.lines_done(session, claim)
    left = [number for number in range(claim.first_line, claim.first_line + claim.num_lines) if number not in done]
    leasing.flush(session, claim, [answer(claim, number) for number in left], flush_no=0, lease=LEASE)
    leasing.complete(session, claim)
    session.commit()


KILLED = """
import os, signal, sys
from jobs.database import upgrade
from migrations import bridge
taken = bridge._sql
def sql(step):
    if step == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return taken(step)
bridge._sql = sql
upgrade(sys.argv[1])
"""


@pytest.mark.long
def test_killed_at_each_step_it_goes_on(old: Old, empty_database: str, database_url: str, pg_dump: Path) -> None:
    engine = old("0061")
    age(engine)
    with engine.connect() as connection:
        billed = bills(connection, "sum(cost_micros * 1000000.0 + cost_picos)")
    revisions = ["0061", *bridge.STEPS]
    for before, step in zip(revisions[:-1], bridge.STEPS, strict=True):
        command = [sys.executable, "-c", KILLED, empty_database, step]
        killed = subprocess.run(command, cwd=Path(bridge.__file__).parents[2], check=False, env=os.environ)
        assert killed.returncode == -signal.SIGKILL
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT version_num FROM alembic_version")) == before
        assert not is_ready(engine)
    upgrade(empty_database)
    assert is_ready(engine)
    arrange(empty_database)
    assert dump(pg_dump, empty_database, "--schema-only") == dump(pg_dump, database_url, "--schema-only")
    with engine.connect() as connection:
        assert bills(connection, "sum(cost_picos)") == billed


@pytest.mark.parametrize("revision", ["0001", "0036", "0060", "0061b", "0070", "006"])
def test_a_revision_that_is_not_taken_over_is_told_what_to_do_and_stays(
    old: Old, revision: str, empty_database: str, pg_dump: Path
) -> None:
    with old("0061").begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    before = dump(pg_dump, empty_database)
    with pytest.raises(ServiceError, match=rf"{revision}.*0061.*0069.*`tokenmill db upgrade`") as refused:
        upgrade(empty_database)
    assert "\n" not in str(refused.value)
    assert dump(pg_dump, empty_database) == before


def test_an_extraction_that_older_code_has_begun_has_to_end_first(old: Old, empty_database: str, pg_dump: Path) -> None:
    engine = old("0061")
    with engine.begin() as connection:
        connection.execute(text("UPDATE extraction_stage SET name = NULL"))
    before = dump(pg_dump, empty_database)
    with pytest.raises(ServiceError, match=old_databases.LIVE_EXTRACTION) as refused:
        upgrade(empty_database)
    assert old_databases.ENDED_EXTRACTION not in str(refused.value)
    assert dump(pg_dump, empty_database) == before
    with transaction(sessions(engine)) as session:
        session.execute(text("UPDATE extraction SET state = 'cancelled'"))
    assert upgrade(empty_database) == head_revision()
