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

from jobs.database import advisory_lock
from jobs.errors import FencedOutError, LimitError, NotFoundError
from jobs.ids import new_id
from jobs.states import AskedPriority, CountState, require_move
from jobs.tables import File, InputCount

MAX_LISTED_A_TURN = 1000
"""Bad lines that a turn describes; the row keeps as many as a failed validation lists."""
MAX_COUNTING = 2
"""Inputs of one tenant that are being counted."""
KEPT = timedelta(days=1)
"""For how long a count is found, finished or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCount:
    """An input to be counted, and what its batch would be."""

    file_id: str
    endpoint: str
    model: str
    priority: AskedPriority
    completion_window: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedCount:
    """An input whose turn it is at one worker."""

    count_id: str
    fence: int
    claimed_by: str
    """Who made this claim: a database that was restored gives out the same fence again."""
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
    claimed_by = new_id("claim")
    values = {"model": model, "lease": lease, "kept": KEPT, "claimed_by": claimed_by}
    row = session.execute(_CLAIM, values).one_or_none()
    if row is None:
        return None
    file = session.get(File, row.input_file_id, populate_existing=True)
    if file is None or file.deleted_at is not None:
        _fail(session, _lock(session, row.id, row.claim_fence, claimed_by), "Its input file was deleted.")
        return None
    return ClaimedCount(
        count_id=row.id,
        fence=row.claim_fence,
        claimed_by=claimed_by,
        tenant_id=row.tenant_id,
        endpoint=row.endpoint,
        model=row.model,
        object_key=file.object_key,
        size_bytes=file.size_bytes,
        next_line=row.next_line,
        next_byte=row.next_byte,
    )


def note_turn(session: Session, claimed: ClaimedCount, turn: Turn, *, max_listed: int) -> None:
    """Write what was counted and give the claim back. Raises FencedOutError where it is over."""
    count = _lock(session, claimed.count_id, claimed.fence, claimed.claimed_by)
    count.next_line, count.next_byte = turn.next_line, turn.next_byte
    count.num_requests += turn.num_lines
    count.input_tokens += turn.input_tokens
    count.output_tokens += turn.output_tokens
    count.num_invalid += turn.num_invalid
    count.listed = (count.listed + turn.listed)[:max_listed]
    count.claimed_until = None
    if turn.is_whole:
        _move(count, CountState.COUNTED)
    session.flush()


def fail(session: Session, claimed: ClaimedCount, reason: str) -> None:
    """End a count that comes to nothing. Raises FencedOutError where the claim is over."""
    _fail(session, _lock(session, claimed.count_id, claimed.fence, claimed.claimed_by), reason)


def forget(session: Session) -> int:
    """Delete what nobody finds any more; return how many."""
    old = delete(InputCount).where(InputCount.created_at <= func.now() - KEPT).returning(InputCount.id)
    return len(session.execute(old, execution_options={"synchronize_session": False}).all())


def _fail(session: Session, count: InputCount, reason: str) -> None:
    count.failure, count.claimed_until = reason, None
    _move(count, CountState.FAILED)
    session.flush()


def _move(count: InputCount, state: CountState) -> None:
    require_move(CountState(count.state), state)
    count.state = state


def _lock(session: Session, count_id: str, fence: int, claimed_by: str) -> InputCount:
    mine = select(InputCount).where(InputCount.id == count_id)
    mine = mine.where(InputCount.claim_fence == fence, InputCount.claimed_by == claimed_by)
    is_open = InputCount.state == CountState.COUNTING.value
    count = session.scalar(mine.where(is_open).with_for_update(), execution_options={"populate_existing": True})
    if count is None:
        raise FencedOutError(f"input count {count_id} is no longer claimed under fence {fence}")
    return count


# A tenant's last turn is the latest of any of its inputs': with two of them it has no more turns than with one.
_CLAIM = text("""
    UPDATE input_count SET claim_fence = claim_fence + 1, claimed_by = :claimed_by, last_turn_at = clock_timestamp(),
        claimed_until = clock_timestamp() + CAST(:lease AS interval)
    WHERE id = (
        SELECT id FROM input_count AS found
        WHERE model = :model AND state = 'counting' AND created_at > now() - CAST(:kept AS interval)
            AND (claimed_until IS NULL OR claimed_until <= clock_timestamp())
        ORDER BY (
            SELECT max(last_turn_at) FROM input_count AS theirs
            WHERE theirs.tenant_id = found.tenant_id AND theirs.model = :model
        ) NULLS FIRST, last_turn_at NULLS FIRST, id
        LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    )
    RETURNING id, claim_fence, tenant_id, input_file_id, endpoint, model, next_line, next_byte
""")
