"""Checkpoints: output tokens of unfinished lines that a draining worker saved for its successor.

A checkpoint saves work and is no result: it bills nothing, and a line without one is computed from its prompt. Only a
worker with the same model files continues from it, as the model behind a name may have changed. A checkpoint without
tokens records that a broken row has ended the line there: its next such end is its last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.leasing import ClaimedChunk


def save(
    session: Session, claim: ClaimedChunk, outputs: Mapping[int, Sequence[int]], *, model_fingerprint: str
) -> None:
    """Save the output tokens of unfinished lines, by line number, replacing earlier checkpoints.

    None marks a line that a broken row has ended.
    """
    if outputs:
        rows = [
            {
                "batch_id": claim.batch_id,
                "line_no": line_no,
                "token_ids": list(token_ids),
                "model_fingerprint": model_fingerprint,
            }
            for line_no, token_ids in outputs.items()
        ]
        session.execute(_SAVE, rows)


def read(session: Session, claim: ClaimedChunk, *, model_fingerprint: str) -> dict[int, list[int]]:
    """Return the checkpoints of the chunk's lines for that model, by line number."""
    values = {
        "batch_id": claim.batch_id,
        "first": claim.first_line,
        "end": claim.first_line + claim.num_lines,
        "model_fingerprint": model_fingerprint,
    }
    return {row.line_no: row.token_ids for row in session.execute(_READ, values)}


def drop_all(session: Session, batch_id: str) -> None:
    """Delete the checkpoints of a batch that has ended."""
    session.execute(_DROP, {"batch_id": batch_id})


_SAVE = text("""
    INSERT INTO checkpoint (batch_id, line_no, token_ids, model_fingerprint)
    VALUES (:batch_id, :line_no, :token_ids, :model_fingerprint)
    ON CONFLICT (batch_id, line_no) DO UPDATE
    SET token_ids = excluded.token_ids, model_fingerprint = excluded.model_fingerprint
""")

_READ = text("""
    SELECT line_no, token_ids FROM checkpoint
    WHERE batch_id = :batch_id AND line_no >= :first AND line_no < :end AND model_fingerprint = :model_fingerprint
""")

_DROP = text("DELETE FROM checkpoint WHERE batch_id = :batch_id")
