"""Inputs that workers count token by token before they are submitted: asked for, counted in turns, and forgotten.

Nothing here bills or reserves. A turn is a claim, some lines, and one write under the claim's fence; whoever dies in
between loses its turn, and the next one goes on behind the last line that was written. Tenants take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session

from jobs.claims.claims import Claim, Claims, new_owner
from jobs.database import advisory_lock
from jobs.errors import LimitError, NotFoundError
from jobs.ids import new_id
from jobs.states import AskedPriority, CountState, require_move
from jobs.tables import File, InputCount

MAX_LISTED_A_TURN = 1000
"""Bad lines that a turn describes; the row keeps as many as a failed validation lists."""
MAX_COUNTING = 2
"""Inputs of one tenant that are being counted."""
KEPT = timedelta(days=1)
"""For how long a count is found, finished or not."""

COUNTS = Claims(InputCount, [CountState.COUNTING], ends_with_state=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCount:
    """An input to be counted, and what its batch would be."""

    file_id: str
    endpoint: str
    model: str
    priority: AskedPriority
    completion_window: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedCount(Claim):
    """An input whose turn it is at one worker."""

    tenant_id: str
    endpoint: str
    model: str
    object_key: str
    size_bytes: int
    next_line: int
    """0-based; the lines before it are counted."""
    next_byte: int
    """Where that line begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What was counted in one turn."""

    next_line: int
    next_byte: int
    is_whole: bool
    """There is no line left."""
    num_lines: int
    input_tokens: int
    output_tokens: int
    num_invalid: int
    listed: list[dict[str, Any]]
    """What is wrong with the first of these."""


def ask(session: Session, tenant_id: str, new: NewCount) -> InputCount:
    """Have an input counted. Raises LimitError where as many of the tenant's are being counted as may be."""
    advisory_lock(session, f"input counts {tenant_id}")
    counting = (InputCount.tenant_id == tenant_id) & (InputCount.state == CountState.COUNTING.value)
    num = session.scalar(select(func.count()).select_from(InputCount).where(counting)) or 0
    if num >= MAX_COUNTING:
        raise LimitError(
            f"{num} of your inputs are being counted and {MAX_COUNTING} are allowed. Wait until one is, or estimate "
            "without exact.",
            code="exact_estimates_exceeded",
        )
    count = InputCount(
        id=new_id("estimate"),
        tenant_id=tenant_id,
        input_file_id=new.file_id,
        endpoint=new.endpoint,
        model=new.model,
        priority=new.priority.value,
        completion_window=new.completion_window,
    )
    session.add(count)
    session.flush()
    session.refresh(count)
    return count


def get(session: Session, tenant_id: str, count_id: str) -> InputCount:
    """Return what was counted so far. Raises NotFoundError."""
    mine = select(InputCount).where(InputCount.id == count_id, InputCount.tenant_id == tenant_id)
    count = session.scalar(mine.where(InputCount.created_at > func.now() - KEPT))
    if count is None:
        raise NotFoundError(f"No such estimate: {count_id!r}. Exact ones are kept for a day.", param="estimate_id")
    return count


def file_of(session: Session, count: InputCount) -> File:
    """Return the input of a count; its row stays where it is deleted."""
    return session.get_one(File, count.input_file_id)


def claim(session: Session, *, model: str, lease: timedelta) -> ClaimedCount | None:
    """Take the input whose tenant has waited longest for a turn at this model; None where there is none to take.

    One whose file is gone has failed.
    """
    values = {"model": model, "lease": lease, "kept": KEPT, "owner": new_owner()}
    row = session.execute(_CLAIM, values).mappings().one_or_none()
    if row is None:
        return None
    columns = dict(row)
    is_deleted = columns.pop("is_deleted")
    claimed = ClaimedCount(**columns)
    if is_deleted:
        fail(session, claimed, "Its input file was deleted.")
        return None
    return claimed


def note_turn(session: Session, claimed: ClaimedCount, turn: Turn, *, max_listed: int) -> None:
    """Write what was counted and give the claim back. Raises FencedOutError where it is over."""
    count = COUNTS.lock(session, claimed)
    count.next_line, count.next_byte = turn.next_line, turn.next_byte
    count.num_requests += turn.num_lines
    count.input_tokens += turn.input_tokens
    count.output_tokens += turn.output_tokens
    count.num_invalid += turn.num_invalid
    count.listed = (count.listed + turn.listed)[:max_listed]
    COUNTS.free(count)
    if turn.is_whole:
        _move(count, CountState.COUNTED)
    session.flush()


def fail(session: Session, claimed: ClaimedCount, reason: str) -> None:
    """End a count that comes to nothing. Raises FencedOutError where the claim is over."""
    count = COUNTS.lock(session, claimed)
    COUNTS.free(count)
    count.failure = reason
    _move(count, CountState.FAILED)
    session.flush()


def forget(session: Session) -> int:
    """Delete what nobody finds any more; return how many."""
    old = delete(InputCount).where(InputCount.created_at <= func.now() - KEPT).returning(InputCount.id)
    return len(session.execute(old, execution_options={"synchronize_session": False}).all())


def _move(count: InputCount, state: CountState) -> None:
    require_move(CountState(count.state), state)
    count.state = state


# A tenant's last turn is the latest of any of its inputs': with two of them it has no more turns than with one.
_CLAIM = text(f"""
    UPDATE input_count SET {COUNTS.sql.taken}, last_turn_at = clock_timestamp() FROM file
    WHERE file.id = input_file_id AND input_count.id = (
        SELECT id FROM input_count
        WHERE model = :model AND state = 'counting' AND created_at > now() - CAST(:kept AS interval)
            AND {COUNTS.sql.is_free}
        ORDER BY (
            SELECT max(last_turn_at) FROM input_count AS theirs
            WHERE theirs.tenant_id = input_count.tenant_id AND theirs.model = :model
        ) NULLS FIRST, last_turn_at NULLS FIRST, id
        LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    )
    RETURNING input_count.id, state, claimed_by AS owner, claim_fence AS fence, input_count.tenant_id, endpoint, model,
        next_line, next_byte, object_key, size_bytes, deleted_at IS NOT NULL AS is_deleted
""")
