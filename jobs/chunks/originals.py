"""Originals: the lines whose answers their copies wait for. Copies differ only in the custom_id. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.chunk_ref import ChunkRef

MAX_COPIED_BYTES = 16 * 1024
"""Longest shared answer. Copies are not billed, so a long answer to a short line, copied a million times, would fill
the store for the price of one. A longer one is computed for each line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A line of the batch that other lines are copies of."""

    line_no: int
    answer: bytes | None
    """Its line of the output file; None where it has no result, failed, or is too long."""
    is_too_long: bool
    """Whether its answer is longer than MAX_COPIED_BYTES and therefore not shared."""
    is_awaited: bool
    """Whether it has no result yet and another leased chunk is computing one."""


def find(session: Session, chunk: ChunkRef, *, line_nos: Sequence[int]) -> list[Original]:
    """Return the originals at these lines of the chunk's batch, in any chunk."""
    values = {
        "day": chunk.batch_day,
        "batch_id": chunk.batch_id,
        "chunk_id": chunk.chunk_id,
        "line_nos": list(line_nos),
        "max_bytes": MAX_COPIED_BYTES,
    }
    return [Original(**row._asdict()) for row in session.execute(_FIND, values)]


# The odd form makes the planner use the index of leased chunks, which are few, instead of all chunks of a batch.
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
