"""Whether a batch has used up its run's cap. Ends nothing: `features.pipelines` does."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts.batch_caps import IS_CAPPED, PICOS_LEFT, TOKENS_LEFT

# Nothing of the batch runs or is about to, and no line fits into what its run has left, so none ever will. A chunk that
# nobody has tried is tried first where there is some room, as its need is a guess.
CAP_IS_REACHED = f"""(
    {IS_CAPPED} AND batch.state = 'in_progress' AND batch.waits_for_tokens IS NOT NULL AND batch.covered_tokens = 0
    AND NOT EXISTS (SELECT FROM chunk WHERE chunk.batch_id = batch.id AND chunk.state IN ('ready', 'leased'))
    AND (
        SELECT NOT EXISTS (
            SELECT FROM chunk WHERE chunk.batch_id = batch.id AND chunk.state = 'waiting'
                AND coalesce(chunk.waits_for_tokens <= cap.tokens, TRUE)
                AND coalesce(chunk.waits_for_picos <= cap.picos, TRUE)
        ) AND (
            coalesce(cap.tokens <= 0, FALSE) OR coalesce(cap.picos <= 0, FALSE) OR NOT EXISTS (
                SELECT FROM chunk
                WHERE chunk.batch_id = batch.id AND chunk.state = 'waiting' AND chunk.needed_tokens IS NULL
            )
        )
        FROM (SELECT {TOKENS_LEFT} AS tokens, {PICOS_LEFT} AS picos) AS cap
    )
)"""


def is_used_up(session: Session, batch_id: str) -> bool:
    """Return whether a batch, locked by the caller, runs nothing and can run no further line because of its caps."""
    return session.scalar(_IS_USED_UP, {"batch_id": batch_id}) is not None


_IS_USED_UP = text(f"SELECT id FROM batch WHERE id = :batch_id AND {CAP_IS_REACHED}")
