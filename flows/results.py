"""Results of a node's batch in the order in which they came, while it runs or after.

Results are numbered without gaps in the order of their commits, so whoever has seen number n has missed none before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from flows.tables import FlowNode
from jobs.batches.page_ends import end_of_page
from jobs.lines.reading import custom_id_of
from jobs.partitions import batch_day
from jobs.settings import MIB
from jobs.tables import Batch

_ROWS_A_PAGE = 500
_BYTES_A_PAGE = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The next results that a flow has not acted on."""

    custom_ids: tuple[str, ...]
    """Of their lines."""
    num_seen: int
    """What `flow_node.num_seen` is after them."""


def next_page(session: Session, node: FlowNode, batch: Batch) -> Page | None:
    """Return the results after those seen, up to 4 MiB; None if there are none yet."""
    values = {"day": batch_day(batch.created_at), "batch_id": batch.id}
    seen = node.num_seen or 0
    last, _ = end_of_page(session, _SIZES, values, after=seen, limit=_ROWS_A_PAGE, max_bytes=_BYTES_A_PAGE)
    if last == seen:
        return None
    lines = session.scalars(_LINES, {**values, "after": seen, "last": last})
    ids = (custom_id_of(bytes(line)) for line in lines)
    return Page(custom_ids=tuple(name for name in ids if name is not None), num_seen=last)


_SIZES = text("""
    SELECT result_no, octet_length(line) FROM result
    WHERE batch_day = :day AND batch_id = :batch_id AND result_no > :after
    ORDER BY result_no LIMIT :limit
""")

_LINES = text("""
    SELECT line FROM result
    WHERE batch_day = :day AND batch_id = :batch_id AND result_no > :after AND result_no <= :last ORDER BY result_no
""")
