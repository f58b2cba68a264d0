"""Measure runs of schedules that are due in the same minute, and how they delay another tenant's schedules.

Run as `python -m lab.due_schedules --database-url postgresql://… [--schedules 10000] [--tenants 1]` against a migrated,
disposable database. Each of `--dispatchers` is a thread that handles schedules as a dispatcher does. About twice a
second a schedule of one more tenant becomes due; its delay ends when its run is visible.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from sqlalchemy import insert, text
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.arguments import natural
from features.pipelines.scheduling.due_turns import DueTurns
from features.pipelines.tables import Pipeline, Schedule
from jobs.accounts import tenants
from jobs.database import connect, sessions
from jobs.ids import new_id

_LOOK_EVERY_SECONDS = 2.0  # interval of a dispatcher
_EVERY_SECONDS = 0.5
_POLL_SECONDS = 0.02


def make_pipeline(session: Session) -> Pipeline:
    """Insert a tenant and its pipeline."""
    tenant = tenants.create_tenant(session, new_id("bench"))
    pipeline = Pipeline(id=new_id("pipeline"), tenant_id=tenant.id, name="bench", definition={"steps": []})
    session.add(pipeline)
    session.flush()
    return pipeline


def schedules_of(pipeline: Pipeline, number: int, *, due_at: datetime) -> list[dict[str, Any]]:
    """Return rows of daily schedules that are due at `due_at` and apply every check."""
    common = {"tenant_id": pipeline.tenant_id, "pipeline_id": pipeline.id, "time_zone": "UTC", "catch_up": "none"}
    when = {"cron": f"{due_at.minute} {due_at.hour} * * *", "next_at": due_at, "due_at": due_at, "catch_up_seconds": 0}
    names = (new_id("schedule") for _ in range(number))
    return [{"id": name, "name": name, **common, **when} for name in names]


def make_schedules(maker: sessionmaker[Session], number: int, *, num_tenants: int) -> None:
    """Insert `number` schedules that are due since this minute began, spread evenly over `num_tenants`."""
    with maker.begin() as session:
        due_at = session.scalar(text("SELECT date_trunc('minute', now())"))
        for index in range(num_tenants):
            share = (number + index) // num_tenants
            session.execute(insert(Schedule), schedules_of(make_pipeline(session), share, due_at=due_at))
    with maker.begin() as session:
        session.execute(text("ANALYZE schedule"))


def dispatch(maker: sessionmaker[Session], is_over: threading.Event) -> None:
    """Handle schedules as a dispatcher does, until `is_over` is set."""
    turns = DueTurns(maker)
    turns.make_due_runs()
    while not is_over.wait(_LOOK_EVERY_SECONDS):
        turns.make_due_runs()


def delays(maker: sessionmaker[Session], pipeline: Pipeline) -> Iterator[float]:
    """Yield the delay in seconds of each schedule of another tenant, as long as other schedules are due."""
    while True:
        with maker.begin() as session:
            due_at = session.scalar(text("SELECT clock_timestamp()"))
            [row] = schedules_of(pipeline, 1, due_at=due_at)
            session.execute(insert(Schedule), [row])
        began = time.perf_counter()
        while not is_made(maker, row["id"]):
            time.sleep(_POLL_SECONDS)
        delay = time.perf_counter() - began
        if not is_any_due(maker):
            return
        yield delay
        time.sleep(_EVERY_SECONDS)


def is_any_due(maker: sessionmaker[Session]) -> bool:
    with maker() as session:
        return session.execute(text("SELECT FROM schedule WHERE due_at <= now() LIMIT 1")).first() is not None


def is_made(maker: sessionmaker[Session], schedule_id: str) -> bool:
    with maker() as session:
        run = text("SELECT FROM run JOIN flow USING (id) WHERE schedule_id = :id AND state = 'queued'")
        return session.execute(run, {"id": schedule_id}).first() is not None


def measure(database_url: str, number: int, *, num_tenants: int, num_dispatchers: int) -> None:
    """Make the runs of `number` schedules in this process, and print the times."""
    engine = connect(database_url, connections=num_dispatchers + 1)
    maker = sessions(engine)
    make_schedules(maker, number, num_tenants=num_tenants)
    with maker.begin() as session:
        other = make_pipeline(session)
    is_over = threading.Event()
    with ThreadPoolExecutor(num_dispatchers) as pool:
        began, cpu = time.perf_counter(), time.process_time()
        making = [pool.submit(dispatch, maker, is_over) for _ in range(num_dispatchers)]
        try:
            waits = list(delays(maker, other))
        finally:
            is_over.set()
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        for each in making:
            each.result()
    with maker() as session:
        made, skipped = session.execute(_COUNT, {"other": other.tenant_id}).one()
    engine.dispose()
    print(
        f"{number} schedules of {num_tenants} tenants, {num_dispatchers} dispatchers: {made} runs and {skipped} "
        f"skipped in {seconds:.1f} s ({cpu_seconds:.1f} s CPU); delay of another tenant {max(waits, default=0):.2f} s "
        f"at most, {len(waits)} times measured",
        flush=True,
    )


_COUNT = text("""
    SELECT count(*) FILTER (WHERE state = 'queued'), count(*) FILTER (WHERE state = 'skipped')
    FROM run JOIN flow USING (id) WHERE tenant_id <> :other
""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--schedules", type=natural, default=10_000)
    parser.add_argument("--tenants", type=natural, default=1)
    parser.add_argument("--dispatchers", type=natural, default=1)
    arguments = parser.parse_args()
    measure(
        arguments.database_url,
        arguments.schedules,
        num_tenants=arguments.tenants,
        num_dispatchers=arguments.dispatchers,
    )


if __name__ == "__main__":
    main()
