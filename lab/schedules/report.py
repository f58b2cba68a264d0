"""Prints when runs were made, begun, handed in and validated, and what each cost."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Engine, text

from lab.schedules.rows import Sizes
from lab.schedules.spending import Spent

_SHARES = (10, 50, 90, 100)
_PROMISED = 10_000
_SHOWN_CHARACTERS = 110


def report(engine: Engine, sizes: Sizes, spent: Spent, *, due_at: datetime, num_statements: int) -> None:
    """Print the measurements."""
    number = sizes.schedules
    print(f"{number:,} schedules of {sizes.tenants:,} tenants, {sizes.rows} rows a run; seconds after they were due:")
    with engine.connect() as connection:
        moments = connection.execute(_MOMENTS).all()
        statements = connection.execute(_STATEMENTS).all()
    for moment, column in (("made", 0), ("begun", 1), ("handed in", 2), ("validated", 3)):
        after = sorted((row[column] - due_at).total_seconds() for row in moments if row[column] is not None)
        shown = ", ".join(f"{share} % {_at(after, number, share)}" for share in _SHARES)
        print(f"  {moment}: {shown}")
    print(f"  processor ms a run: {_per_run(spent, number)}")
    calls = sum(row.calls for row in statements)
    print(f"  {calls / number:.1f} statements and {spent.transactions / number:.1f} transactions a run")
    together = sum(spent.seconds.values()) / number
    print(f"  {_PROMISED:,} runs at this cost: {together * _PROMISED:,.0f} processor seconds")
    print("  statements by their time in Postgres: calls a run, ms a call, ms a run", flush=True)
    for row in statements[:num_statements]:
        text_ = " ".join(row.query.split())[:_SHOWN_CHARACTERS]
        print(f"    {row.calls / number:.2f} {row.ms / row.calls:.3f} {row.ms / number:.3f} {text_}", flush=True)


def _at(after: list[float], number: int, share: int) -> str:
    """Return the seconds after which `share` percent of the runs had come so far; — where they have not."""
    place = -(-number * share // 100)
    return f"{after[place - 1]:.1f}" if place <= len(after) else "—"


def _per_run(spent: Spent, number: int) -> str:
    each = {role: seconds / number * 1000 for role, seconds in spent.seconds.items()}
    return ", ".join(f"{role} {ms:.1f}" for role, ms in each.items()) + f"; together {sum(each.values()):.1f}"


_MOMENTS = text("""
    SELECT flow.created_at, run.started_at, batch.created_at, batch.in_progress_at
    FROM flow JOIN run ON run.id = flow.id LEFT JOIN flow_node AS node ON node.flow_id = flow.id
    LEFT JOIN batch ON batch.id = node.batch_id
""")
_STATEMENTS = text("""
    SELECT query, calls, total_exec_time + total_plan_time AS ms FROM pg_stat_statements
    ORDER BY ms DESC
""")
