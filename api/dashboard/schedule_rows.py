"""A schedule as a row of a table: what of it changes while one looks. Pure but for the clock of `formats`."""

from __future__ import annotations

from collections.abc import Sequence

from api.dashboard import formats
from api.dashboard.live import Shown
from jobs.overview.scheduled import NextRun


def schedule_places(found: Sequence[NextRun]) -> dict[str, Shown]:
    """Return when each runs next and how it ran last, by the name of its place."""
    values: dict[str, Shown] = {}
    for n, one in enumerate(found):
        last = (formats.NOTHING, "") if one.last_state is None else _state(one.last_state)
        values |= {
            f"s{n}.next": "paused" if one.paused_at else formats.until(one.next_at),
            f"s{n}.last": last,
            f"s{n}.last_at": "" if one.last_at is None else formats.ago(one.last_at),
        }
    return values


def _state(state: str) -> tuple[str, str]:
    return formats.state_name(state), formats.tone(state)
