"""What `/metrics` shows of the queue costs what is open, not what there ever was."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import metrics
from jobs.tables import Batch


def test_open_chunks_are_counted_without_a_look_at_those_that_are_done(
    session: Session, run: Callable[..., Batch]
) -> None:
    run(1)
    session.execute(
        text("""
            INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
                byte_start, byte_end, estimated_tokens, state)
            SELECT batch_id, tenant_id, model, priority, expires_at, 0, 1, 1, 0, 1, 1, 'done'
            FROM chunk, generate_series(1, 20000)
        """)
    )
    session.execute(text("ANALYZE chunk"))
    plan = session.scalar(text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + str(metrics._OPEN_CHUNKS)))
    assert isinstance(plan, list)
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 50
