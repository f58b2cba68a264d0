"""A schedule as a row of a table: the values that change while the page is open."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from api.dashboard import formats
from api.dashboard.live import Shown
from jobs.overview.scheduled import NextRun


def schedule_places(schedules: Sequence[NextRun]) -> dict[str, Shown]:
    """Return the next run and the last result of each schedule, by the name of its place."""
    values: dict[str, Shown] = {}
    for n, one in enumerate(schedules):
        last = (formats.NOTHING, "") if one.last_state is None else _state(one.last_state)
        values |= {
            f"s{n}.next": "paused" if one.paused_at else formats.until(one.next_at),
            f"s{n}.last": last,
            f"s{n}.last_at": "" if one.last_at is None else formats.ago(one.last_at),
        }
    return values


def schedule_row(one: NextRun) -> tuple[Hashable, ...]:
    """Return the values of a schedule that do not change in place: if they change, the page is reloaded."""
    trouble = one.num_failures, one.num_skipped, one.pause_reason, one.last_reason
    return one.schedule_id, one.paused_at, one.last_run_id, *trouble


def _state(state: str) -> tuple[str, str]:
    return formats.state_name(state), formats.tone(state)
