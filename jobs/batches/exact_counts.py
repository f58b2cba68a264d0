"""Exact token counts of inputs before they are submitted: requested, counted by workers in turns, and expired.

Nothing here bills or reserves. A turn is a claim, some lines, and one write under the claim's fence; a worker that dies
loses its turn, and the next one continues after the last line written. Tenants take turns.
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
"""Invalid lines described per turn; the row keeps as many as a failed validation lists."""
MAX_COUNTING = 2
"""Inputs of one tenant counted at once."""

COUNTS = Claims(InputCount, [CountState.COUNTING], ends_with_state=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCount:
    """An input to count, and the batch it is for."""

    file_id: str
    endpoint: str
    model: str
    priority: AskedPriority
    completion_window: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedCount(Claim):
    """An input claimed by one worker for a turn."""

    tenant_id: str
    endpoint: str
    model: str
    object_key: str
    size_bytes: int
    next_line: int
    """0-based; the lines before it are counted."""
    next_byte: int
    """Offset of that line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Result of one turn."""

    next_line: int
    next_byte: int
    is_whole: bool
    """Whether no line is left."""
    num_lines: int
    input_tokens: int
    output_tokens: int
    num_invalid: int
    listed: list[dict[str, Any]]
    """Descriptions of the first invalid lines."""


def ask(session: Session, tenant_id: str, new: NewCount) -> InputCount:
    """Request a count. Raises LimitError where the tenant has MAX_COUNTING counts under way."""
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
    """Return a count as it is so far. Raises NotFoundError."""
    mine = select(InputCount).where(InputCount.id == count_id, InputCount.tenant_id == tenant_id)
    count = session.scalar(mine.where(InputCount.created_at > func.now() - InputCount.KEPT))
    if count is None:
        raise NotFoundError(f"No such estimate: {count_id!r}. Exact estimates are kept for a day.", param="estimate_id")
    return count


def file_of(session: Session, count: InputCount) -> File:
    """Return the input file of a count; its row remains after a deletion."""
    return session.get_one(File, count.input_file_id)


def claim(session: Session, *, model: str, lease: timedelta) -> ClaimedCount | None:
    """Claim the input whose tenant has waited longest for a turn of this model; None where there is none.

    A count whose file was deleted fails.
    """
    values = {"model": model, "lease": lease, "kept": InputCount.KEPT, "owner": new_owner()}
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
    """Record the result of a turn and release the claim. Raises FencedOutError where it has ended."""
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
    """Fail a count. Raises FencedOutError where the claim has ended."""
    count = COUNTS.lock(session, claimed)
    COUNTS.free(count)
    count.failure = reason
    _move(count, CountState.FAILED)
    session.flush()


def forget(session: Session) -> int:
    """Delete expired counts; return how many."""
    old = delete(InputCount).where(InputCount.created_at <= func.now() - InputCount.KEPT).returning(InputCount.id)
    return len(session.execute(old, execution_options={"synchronize_session": False}).all())


def _move(count: InputCount, state: CountState) -> None:
    require_move(CountState(count.state), state)
    count.state = state


_NAMES = "SELECT :model UNION ALL SELECT name FROM model AS adapter WHERE adapter.base = :model"
"""A model and its adapters, whose counts its workers make."""

# A tenant's last turn is the latest of all its inputs: two inputs give it no more turns than one.
_CLAIM = text(f"""
    UPDATE input_count SET {COUNTS.sql.taken}, last_turn_at = clock_timestamp() FROM file
    WHERE file.id = input_file_id AND input_count.id = (
        SELECT id FROM input_count
        WHERE model IN ({_NAMES})
            AND state = 'counting' AND created_at > now() - CAST(:kept AS interval)
            AND {COUNTS.sql.is_free}
        ORDER BY (
            SELECT max(last_turn_at) FROM input_count AS theirs
            WHERE theirs.tenant_id = input_count.tenant_id AND theirs.model IN ({_NAMES})
        ) NULLS FIRST, last_turn_at NULLS FIRST, id
        LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    )
    RETURNING input_count.id, state, claimed_by AS owner, claim_fence AS fence, input_count.tenant_id, endpoint, model,
        next_line, next_byte, object_key, size_bytes, deleted_at IS NOT NULL AS is_deleted
""")
