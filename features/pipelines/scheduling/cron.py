"""Cron expressions in time zones, as moments. Pure functions without a clock.

As in Debian's cron, a local time that is skipped by a clock change runs at the change, one that occurs twice runs once,
and `*/30` continues through both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from jobs.errors import InputError

_MAX_CHARACTERS = 100
_NUM_FIELDS = 5
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FORMS = (
    "Give five fields, minute hour day-of-month month day-of-week, such as '30 2 * * *' or '*/15 8-18 * * MON-FRI', "
    "or one of @hourly, @daily, @weekly, @monthly and @yearly."
)
_ANY_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
_CHANGE_AT_MOST = timedelta(hours=3)
"""Largest clock change of a zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A moment at which a schedule is due."""

    at: datetime
    """In UTC."""
    local: datetime
    """The same moment in the zone's local time."""
    note: str | None
    """The clock change since the previous tick, None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A valid expression in its zone."""

    fields: str
    zone: ZoneInfo

    @classmethod
    def parse(cls, expression: str, zone: ZoneInfo) -> Self:
        """Parse an expression. Raise InputError that names the wrong field and what is allowed."""
        stripped = expression.strip()
        fields = _NAMED.get(stripped.lower(), stripped)
        if len(expression) > _MAX_CHARACTERS:
            raise _wrong(expression, f"it has {len(expression)} characters and {_MAX_CHARACTERS} are allowed")
        if stripped.startswith("@") and fields == stripped:
            raise _wrong(expression, f"{stripped!r} is not known")
        if len(fields.split()) != _NUM_FIELDS:
            what = "seconds are not" if len(fields.split()) == _NUM_FIELDS + 1 else f"{_NUM_FIELDS} are"
            raise _wrong(expression, f"it has {len(fields.split())} fields and {what} allowed")
        try:
            CronSim(fields, _ANY_MOMENT)
        except CronSimError as error:
            raise _wrong(expression, _problem(error)) from None
        cron = cls(fields=fields, zone=zone)
        if cron.after(_ANY_MOMENT) is None:
            raise _wrong(expression, "it never matches any day")
        return cron

    def after(self, moment: datetime) -> datetime | None:
        """Return the first tick later than `moment`, in UTC; None if there is none any more."""
        # Compared in UTC, as Python compares two moments of one zone by local time. cronsim counts in local time too,
        # and in the second of two equal hours it returns a tick in the first.
        try:
            for tick in CronSim(self.fields, moment.astimezone(self.zone)):
                utc_tick = tick.astimezone(UTC)
                if utc_tick > moment:
                    return utc_tick
        except (OverflowError, ValueError):  # the year 10,000
            pass
        return None

    def before(self, moment: datetime) -> datetime | None:
        """Return the last tick earlier than `moment`, in UTC; None if there was none."""
        ticks = CronSim(self.fields, moment.astimezone(self.zone), reverse=True)
        # Backwards and forwards differ by the hour of a clock change; `after` is authoritative.
        start = next((tick.astimezone(UTC) for tick in ticks if tick.astimezone(UTC) < moment), None)
        if start is None:
            return None
        last = None
        for tick in self.all_after(start - _CHANGE_AT_MOST):
            if tick >= moment:
                break
            last = tick
        return last

    def all_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the ticks later than `moment`, in order."""
        tick = self.after(moment)
        while tick is not None:
            yield tick
            tick = self.after(tick)

    def upcoming(self, after: datetime, *, number: int, until: datetime | None = None) -> list[Tick]:
        """Return the next ticks up to and including `until`, with a note at each clock change."""
        ticks: list[Tick] = []
        earlier = after.astimezone(self.zone)
        for moment in islice(self.all_after(after), number):
            if until is not None and moment > until:
                break
            local = moment.astimezone(self.zone)
            ticks.append(Tick(at=moment, local=local, note=_change(earlier, local)))
            earlier = local
        return ticks


def _change(earlier: datetime, later: datetime) -> str | None:
    before, after = earlier.utcoffset(), later.utcoffset()
    assert before is not None
    assert after is not None
    if before == after:
        return None
    way = "forward" if after > before else "back"
    return f"clocks are put {way} by {_shown(abs(after - before))} before it"


def _shown(duration: timedelta) -> str:
    hours, minutes = divmod(int(duration.total_seconds()) // 60, 60)
    return " ".join([f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes))


def _problem(error: CronSimError) -> str:
    """Return the problem with the field and what is allowed; cronsim's message is `Bad day-of-month`."""
    field = str(error).removeprefix("Bad ")
    allowed = {
        "minute": "0 to 59",
        "hour": "0 to 23",
        "day-of-month": "1 to 31, or L for the last day, that occur in the months",
        "month": "1 to 12 or JAN to DEC",
        "day-of-week": "0 to 7 or SUN to SAT, MON#1 for the first Monday, 5L for the last Friday",
    }
    return f"its {field} is wrong; allowed are {allowed[field]}" if field in allowed else str(error)


def _wrong(expression: str, problem: str) -> InputError:
    return InputError(f"The cron expression is {expression[:80]!r}: {problem}. {_FORMS}", param="cron")
