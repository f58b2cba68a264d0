"""Cover lines of a claimed chunk before they run: reserve the most that each may use, so that limits hold.

One transaction per group of lines. The chunk records under its fence how much it covers, so that the end of a lease
returns it exactly once, whoever ends it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import covers
from jobs.accounts.batch_caps import IS_CAPPED
from jobs.accounts.covers import Covered
from jobs.chunks.leases import LEASES
from jobs.chunks.leasing import ClaimedChunk


def cover(
    session: Session,
    claim: ClaimedChunk,
    costs: Sequence[int],
    *,
    covered: int,
    picos: Sequence[int] = (),
    covered_picos: int = 0,
) -> Covered:
    """Cover further lines that may use `costs` tokens each; return which of them fit into batch and budgets.

    `picos` is what they may cost; `covered` and `covered_picos` are the chunk's cover before this call. When the
    outcome of a commit is unknown, repeat the call unchanged. Raises FencedOutError.
    """
    tokens, most_picos = sum(costs), sum(picos)
    values = {
        **claim.guard,
        "covered": covered,
        "tokens": tokens,
        "covered_picos": covered_picos + most_picos,
        "tenant_id": claim.tenant_id,
    }
    if session.execute(_COVER_FROM_BATCH, values).one_or_none() is not None:
        return Covered(fits=[True] * len(costs), tokens=tokens, picos=most_picos)
    before = session.scalar(_LOCK, values)
    if before is None:
        raise LEASES.over(claim)
    if before != covered:  # an earlier try has committed after all
        session.execute(_SET, values | {"covered_picos": covered_picos})
        covers.uncover(session, claim.batch_id, before - covered)
    result = covers.cover(session, claim.batch_id, claim.tenant_id, costs, picos=picos)
    after = {"covered": covered + result.tokens, "covered_picos": covered_picos + result.picos}
    session.execute(_SET, values | after)
    return result


# Nearly every group needs this one statement only: the batch has reserved enough, and no other limit applies. A
# transaction that sets a window budget waits for the share lock, and is seen by it: locked rows are read anew. No other
# does.
_COVER_FROM_BATCH = text(f"""
    WITH alone AS (
        SELECT tenant_id FROM budget WHERE tenant_id = :tenant_id AND num_window_budgets = 0 FOR KEY SHARE
    ), held AS (
        SELECT id, batch_id FROM chunk
        WHERE {LEASES.sql.is_held} AND covered_tokens = :covered FOR NO KEY UPDATE
    ), covering AS (
        UPDATE batch SET covered_tokens = covered_tokens + :tokens FROM held, alone
        WHERE batch.id = held.batch_id AND reserved_tokens - covered_tokens >= :tokens AND NOT {IS_CAPPED}
        RETURNING batch.id
    )
    UPDATE chunk SET covered_tokens = covered_tokens + :tokens, covered_picos = :covered_picos
    FROM held, covering WHERE chunk.id = held.id
    RETURNING chunk.id
""")

_LOCK = text(f"SELECT covered_tokens FROM chunk WHERE {LEASES.sql.is_held} FOR NO KEY UPDATE")

_SET = text("UPDATE chunk SET covered_tokens = :covered, covered_picos = :covered_picos WHERE id = :id")
