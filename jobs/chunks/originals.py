"""What copies wait for: the answers of lines of their batch that are the same but for the custom_id. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.chunk_ref import ChunkRef

MAX_COPIED_BYTES = 16 * 1024
"""Of an answer that others are copies of: copies are billed nothing, so a long answer to a short line, a million times
over, would fill the store for the price of one. A longer one is computed for each line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A line of the batch that others are copies of."""

    line_no: int
    answer: bytes | None
    """Its line of the output file; None where it has no result, failed, or is too long."""
    is_too_long: bool
    """Whether its answer is longer than MAX_COPIED_BYTES: none of its copies shares one."""
    is_awaited: bool
    """Whether it has no result yet and another chunk that is leased now brings one."""


def find(session: Session, chunk: ChunkRef, *, line_nos: Sequence[int]) -> list[Original]:
    """Look for the results of lines of the chunk's batch, in any chunk."""
    values = {
        "day": chunk.batch_day,
        "batch_id": chunk.batch_id,
        "chunk_id": chunk.chunk_id,
        "line_nos": list(line_nos),
        "max_bytes": MAX_COPIED_BYTES,
    }
    return [Original(**row._asdict()) for row in session.execute(_FIND, values)]


# The odd form keeps the planner on the leased chunks, which are few, and off those of a batch.
_FIND = text("""
    WITH leased AS MATERIALIZED (
        SELECT first_line, num_lines FROM chunk
        WHERE state = 'leased' AND batch_id || '' = :batch_id AND id <> :chunk_id AND lease_until > clock_timestamp()
    )
    SELECT asked.line_no, CASE WHEN result.status_code = 200 AND octet_length(result.line) <= :max_bytes
            THEN result.line END AS answer,
        COALESCE(result.status_code = 200 AND octet_length(result.line) > :max_bytes, false) AS is_too_long,
        result.line_no IS NULL AND EXISTS (
            SELECT FROM leased
            WHERE asked.line_no >= leased.first_line AND asked.line_no < leased.first_line + leased.num_lines
        ) AS is_awaited
    FROM unnest(CAST(:line_nos AS bigint[])) AS asked (line_no)
        LEFT JOIN result ON result.batch_day = :day AND result.batch_id = :batch_id AND result.line_no = asked.line_no
    ORDER BY asked.line_no
""")
