"""Money for servers outside the house: reserved by the day before a line is asked, and settled by what was paid.

The day has one sum of reservations and payments, which all workers of a model share. The reservations of a worker that
dies stay, as nobody knows what its server computed: the sum is never less than the payments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts.covers import fitting

KEPT = timedelta(days=30)
"""For longer than any line of a day may take to end; the ledger keeps the payments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The outcome of a reservation."""

    day: date
    fits: Sequence[bool]
    """For each line, whether the day's budget has room for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a server outside the house was paid for the lines of a flush."""

    picos: int = 0
    unused: Mapping[date, int] = field(default_factory=dict)
    """By day, the part of the reservations that was not paid; negative if more was paid than reserved."""

    def __bool__(self) -> bool:
        return bool(self.picos or any(self.unused.values()))

    def __add__(self, other: Spent) -> Spent:
        days = self.unused.keys() | other.unused.keys()
        unused = {day: self.unused.get(day, 0) + other.unused.get(day, 0) for day in days}
        return Spent(picos=self.picos + other.picos, unused=unused)


NOTHING_SPENT = Spent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A chunk whose lines are to be asked, under its fence."""

    model: str
    batch_id: str
    chunk_id: int
    fence: int


def reserve(session: Session, asker: Asker, costs: Sequence[int], *, budget_picos: int) -> Reserved:
    """Reserve `costs`, the most that each of some lines of a chunk may cost, as far as today's budget has room.

    They are reserved in this order; a smaller one may fit after one that does not. The least cost that does not fit is
    stored for the chunk: until the budget has room for it, workers outside the house claim neither the chunk nor
    untried ones of its batch.
    """
    row = session.execute(_LOCK_TODAY, {"model": asker.model}).one()
    fits, picos, _ = fitting(costs, max(0, budget_picos - int(row.used_picos)))
    lacked = min((cost for cost, has_room in zip(costs, fits, strict=True) if not has_room), default=None)
    values = {**asdict(asker), "day": row.day, "picos": picos, "lacked": lacked}
    session.execute(_RESERVE, values)
    if lacked is not None:
        session.execute(_NOTE_LACK, values)
    return Reserved(day=row.day, fits=fits)


def settle(session: Session, model: str, unused: Mapping[date, int]) -> None:
    """Subtract what was not paid from the sums of days; negative amounts add to them."""
    for day, picos in sorted((day, picos) for day, picos in unused.items() if picos):  # in order, as each locks a row
        session.execute(_SETTLE, {"model": model, "day": day, "picos": picos})


def forget(session: Session) -> int:
    """Delete what chunks lacked on earlier days, and days of long ago; return how many days."""
    session.execute(_FORGET_LACKS)
    return len(session.execute(_FORGET_DAYS, {"kept": KEPT}).all())


def used_today(session: Session) -> dict[str, int]:
    """Return today's payments and reservations, by model."""
    return {row.model: int(row.used_picos) for row in session.execute(_USED)}


TODAY = "CAST(statement_timestamp() AT TIME ZONE 'UTC' AS date)"

LEFT = f"""({{budget}} - coalesce((
    SELECT used_picos FROM spill_day WHERE spill_day.model = batch.model AND spill_day.day = {TODAY}
), 0))"""
"""What is left of today's budget of a batch's model."""

HAS_ROOM = f"""({LEFT} >= coalesce((
    SELECT lack.picos FROM spill_lack AS lack JOIN chunk AS lacking ON lacking.id = lack.chunk_id
    WHERE lack.batch_id = batch.id AND lack.day = {TODAY} AND lacking.state = 'ready' ORDER BY lack.picos LIMIT 1
), 1))"""
"""Whether today's budget has room for the least cost of a batch's ready chunks that did not fit, or for any line."""

CHUNK_HAS_ROOM = f"""({LEFT} >= coalesce((
    SELECT lack.picos FROM spill_lack AS lack WHERE lack.chunk_id = chunk.id AND lack.day = {TODAY}
), 1))"""
"""The same for one chunk of the batch."""

# The update takes the lock, and reads what others have committed meanwhile.
_LOCK_TODAY = text(f"""
    INSERT INTO spill_day AS today (model, day) VALUES (:model, {TODAY})
    ON CONFLICT (model, day) DO UPDATE SET used_picos = today.used_picos RETURNING day, used_picos
""")

# Lines that an earlier lease lacked room for have been answered, or are tried again under this one.
_RESERVE = text("""
    WITH tried AS (
        DELETE FROM spill_lack WHERE chunk_id = :chunk_id AND (fence < :fence OR day < CAST(:day AS date))
    )
    UPDATE spill_day SET used_picos = used_picos + :picos WHERE model = :model AND day = :day
""")

_NOTE_LACK = text("""
    INSERT INTO spill_lack AS lack (chunk_id, batch_id, day, fence, picos)
    VALUES (:chunk_id, :batch_id, :day, :fence, :lacked)
    ON CONFLICT (chunk_id) DO UPDATE SET picos = least(lack.picos, excluded.picos)
    WHERE lack.fence = excluded.fence AND lack.day = excluded.day
""")
_SETTLE = text("UPDATE spill_day SET used_picos = used_picos - :picos WHERE model = :model AND day = :day")
_FORGET_LACKS = text(f"DELETE FROM spill_lack WHERE day < {TODAY}")
_FORGET_DAYS = text(f"DELETE FROM spill_day WHERE day < {TODAY} - CAST(:kept AS interval) RETURNING model")
_USED = text(f"SELECT model, used_picos FROM spill_day WHERE day = {TODAY}")
