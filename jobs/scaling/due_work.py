"""The kept totals that `tokenmill_wanted_workers` reads: a row per model, written at each measurement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.chunks.fleet import LIVE_WITHIN
from jobs.scaling.limits import Limits, limits_by_model
from jobs.scaling.rule import Due, Peak, decisive, needed_workers, with_peak
from jobs.states import Priority
from jobs.tables import DueWork


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDue:
    """What is served until an open batch has ended, and its deadline in Unix seconds."""

    priority: Priority
    due: Due
    is_for_own: bool = True
    """Whether our engine may answer it; otherwise workers of several models cannot help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWork:
    """The open work of a model, and what its workers do."""

    dues: Sequence[OpenDue] = ()
    """One of each open batch."""
    rate: float | None = None
    live: int = 0


def keep(session: Session, work: Mapping[str, OpenWork]) -> None:
    """Store the work of all models with settings for scaling, and how many workers each needs; and the work of all
    that workers serve in turn."""
    limits = limits_by_model(session)
    models = sorted({*limits, *session.scalars(_SHARED, {"within": LIVE_WITHIN})})
    before = {row.model: row for row in session.scalars(select(DueWork))}
    now = float(session.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
    session.execute(delete(DueWork).where(DueWork.model.not_in(models)))
    for model in models:
        _keep(session, model, work.get(model, OpenWork()), limits.get(model), before=before.get(model), now=now)


def peaks_of(row: DueWork | None) -> list[Peak]:
    """Return the largest numbers of workers that were needed lately."""
    if row is None:
        return []
    return [Peak(at=at, num_workers=number) for at, number in zip(row.peak_times, row.peaks, strict=True)]


def _keep(
    session: Session, model: str, work: OpenWork, limits: Limits | None, *, before: DueWork | None, now: float
) -> None:
    dues = decisive([one.due for one in work.dues], now=now)
    peaks = [] if limits is None else _peaks(dues, work, limits, before=before, now=now)
    columns = {
        "measured_at": text("clock_timestamp()"),
        "deadlines": [due.at for due in dues],
        "due_tokens": [due.tokens for due in dues],
        "peak_times": [peak.at for peak in peaks],
        "peaks": [peak.num_workers for peak in peaks],
        "class_dues": _by_class(work.dues, now=now),
    }
    row = insert(DueWork).values(model=model, **columns)
    session.execute(row.on_conflict_do_update(index_elements=[DueWork.model], set_=columns))


def _peaks(dues: Sequence[Due], work: OpenWork, limits: Limits, *, before: DueWork | None, now: float) -> list[Peak]:
    rate = limits.expected_rate if work.rate is None else work.rate
    needed = needed_workers(dues, limits, rate=rate, live=work.live, now=now)
    return with_peak(peaks_of(before), needed, now=now)


def _by_class(dues: Sequence[OpenDue], *, now: float) -> dict[str, list[tuple[float, float]]]:
    """Return the deadlines of each class that can decide, with their tokens, as far as our engine may help."""
    by_class: dict[Priority, list[Due]] = defaultdict(list)
    for one in dues:
        if one.is_for_own:
            by_class[one.priority].append(one.due)
    return {
        priority.value: [(due.at, due.tokens) for due in decisive(own, now=now)] for priority, own in by_class.items()
    }


_SHARED = text("""
    SELECT DISTINCT unnest(may_serve) FROM worker
    WHERE stopped_at IS NULL AND heartbeat_at > now() - CAST(:within AS interval)
""")
