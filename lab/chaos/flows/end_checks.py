"""What must hold once all flows have ended: ticks, caps, and batches that a flow or a caller names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from jobs.lines.document_bodies import PREPARE_MODEL
from lab.chaos.patience import patiently

_MINUTE = timedelta(minutes=1)
_OPEN = "SELECT recipe, id, state, reason FROM flow WHERE ended_at IS NULL"
_OF_NOBODY = """
    SELECT id, endpoint, state, metadata::text FROM batch
    WHERE NOT EXISTS (SELECT FROM flow_node WHERE batch_id = batch.id)
        AND coalesce(idempotency_key, '') NOT LIKE %s
"""
_REPEATED = """
    SELECT batch_id, count(*) FROM flow_node WHERE batch_id IS NOT NULL GROUP BY batch_id HAVING count(*) > 1
"""
_OVERBILLED = """
    SELECT batch.id, num_billable, sum(num_results) AS billed
    FROM batch JOIN ledger ON ledger.batch_id = batch.id,
        -- Reading an unreadable document is billed, too; a line that a model did not answer is not.
        LATERAL (SELECT num_completed + CASE WHEN batch.model = %s THEN num_failed ELSE 0 END) AS each (num_billable)
    GROUP BY batch.id, num_billable HAVING num_billable < sum(num_results)
"""
_USED = """
    SELECT run.id, (run.definition ->> 'max_tokens')::bigint, sum(ledger.input_tokens + ledger.output_tokens)
    FROM run JOIN flow_node ON flow_node.flow_id = run.id JOIN ledger ON ledger.batch_id = flow_node.batch_id
    WHERE run.definition ->> 'max_tokens' IS NOT NULL
    GROUP BY run.id HAVING sum(ledger.input_tokens + ledger.output_tokens) > (run.definition ->> 'max_tokens')::bigint
"""
_TICKS = """
    SELECT schedule.tenant_id || ' ' || schedule.name, schedule.created_at, schedule.paused_at, run.scheduled_for,
        run.num_missed, flow.state
    FROM schedule LEFT JOIN run ON run.schedule_id = schedule.id LEFT JOIN flow ON flow.id = run.id
    ORDER BY run.scheduled_for
"""


class Database(Protocol):
    """A stack's Postgres."""

    def query(self, sql: str, *values: object) -> list[Any]: ...


def findings(stack: Database, *, key_prefix: str) -> Iterator[str]:
    """Yield what does not hold; the load's own batches have idempotency keys with this prefix."""

    def rows(sql: str, *values: object) -> list[Any]:
        return patiently(lambda: stack.query(sql, *values))

    for recipe, flow_id, state, reason in rows(_OPEN):
        yield f"{recipe} {flow_id} has not ended: it is {state}, {reason}"
    for batch in rows(_OF_NOBODY, f"{key_prefix}%"):
        yield f"no flow names batch {batch}"
    for batch_id, num in rows(_REPEATED):
        yield f"{num} nodes have batch {batch_id}"
    for batch_id, num_billable, billed in rows(_OVERBILLED, PREPARE_MODEL):
        yield f"batch {batch_id} has {num_billable} answers to bill and {billed} are billed"
    for run_id, cap, used in rows(_USED):
        yield f"run {run_id} has used {used} tokens of {cap}"
    yield from missed_ticks(rows(_TICKS))


def missed_ticks(
    rows: Sequence[tuple[str, datetime, datetime, datetime | None, int | None, str | None]],
) -> Iterator[str]:
    """Yield minutes between a schedule's creation and its pause that did not make exactly one run that succeeded."""
    of_each: Mapping[tuple[str, datetime, datetime], list[tuple[datetime, int, str]]] = defaultdict(list)
    for name, created_at, paused_at, scheduled_for, num_missed, state in rows:
        runs = of_each[name, created_at, paused_at]
        if scheduled_for is not None and num_missed is not None and state is not None:
            runs.append((scheduled_for, num_missed, state))
    for (name, created_at, paused_at), runs in of_each.items():
        first = created_at.replace(second=0, microsecond=0) + _MINUTE
        expected = [first + _MINUTE * number for number in range(max(0, (paused_at - first) // _MINUTE + 1))]
        made = [scheduled_for for scheduled_for, _, _ in runs]
        # The last tick may have come while the schedule was being paused.
        if made not in (expected, expected[:-1]):
            yield f"schedule {name} from {created_at} to {paused_at} made runs for {[f'{at:%H:%M}' for at in made]}"
        for scheduled_for, num_missed, state in runs:
            if (num_missed, state) != (1, "succeeded"):
                yield f"the run of schedule {name} for {scheduled_for:%H:%M} is {state} and stands for {num_missed}"
