"""Formats of numbers, times and states on pages. Pure except for the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from features import FEATURES
from jobs.lines.document_bodies import DOCUMENTS, shown_model
from jobs.outcomes import Outcome
from jobs.states import BatchState

NOTHING = "–"
_JUST_NOW, _MINUTE, _HOUR, _DAY = 5, 60, 3600, 86_400
_UNITS: tuple[tuple[int, str], ...] = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_EXACT_BELOW = 10_000
_TONES: dict[str, str] = {
    BatchState.COMPLETED: "good",
    **dict.fromkeys((BatchState.FAILED, Outcome.MOSTLY_FAILED, Outcome.ALL_FAILED), "bad"),
    **dict.fromkeys((BatchState.EXPIRED, BatchState.CANCELLED, BatchState.CANCELLING), "warn"),
    Outcome.SOME_FAILED: "warn",
    **{state: tone for feature in FEATURES for state, tone in feature.tones.items()},
}


def number(value: float | None) -> str:
    """Write a count in at most five characters: 9,312 in full, then 41.2k, 3.1M."""
    if value is None:
        return NOTHING
    if abs(value) < _EXACT_BELOW:
        return f"{value:,.0f}"
    for size, unit in _UNITS:
        if abs(value) >= size:
            scaled = float(value) / size
            return f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:,.0f}{unit}"
    raise AssertionError(value)


def counted(value: int, one: str, several: str) -> str:
    """Write a count with its noun."""
    return f"{number(value)} {one if value == 1 else several}"


def exact(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Write a rate per second, with a decimal below 10."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if 0 < value < 10 else number(value)


def share(part: float, whole: float) -> str:
    """Write a part as whole per cent; only the whole is 100 %."""
    if not whole:
        return NOTHING
    percent = 100 * part / whole
    return f"{min(percent, 99) if part < whole else percent:.0f} %"


def percent(part: float | None) -> str:
    """Write a share, 0 to 1, as per cent with a decimal."""
    return NOTHING if part is None else f"{100 * part:.1f} %"


def span(seconds: float | None) -> str:
    """Write a duration with its two largest units."""
    if seconds is None:
        return NOTHING
    whole = max(0, round(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < 2 * _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def ago(moment: datetime | int | None) -> str:
    """Write how long ago something was; up to 5 s are `just now`, so that heartbeats do not flicker."""
    at = _moment(moment)
    if at is None:
        return NOTHING
    seconds = (datetime.now(UTC) - at).total_seconds()
    return "just now" if seconds < _JUST_NOW else f"{span(seconds)} ago"


def until(moment: datetime | int | None) -> str:
    """Write when something is due: `in 2 h 5 min`, `4 min ago`."""
    at = _moment(moment)
    if at is None:
        return NOTHING
    left = at - datetime.now(UTC)
    return f"in {span(left.total_seconds())}" if left > timedelta(0) else ago(at)


def between(expected: int, earliest: int | None, latest: int | None) -> str:
    """Write an expected time with its range: `in 12 min (9 min to 20 min)`; never in the past."""
    now = datetime.now(UTC).timestamp()
    left = f"in {span(expected - now)}"
    if earliest is None or latest is None:
        return left
    return f"{left} ({span(earliest - now)} to {span(latest - now)})"


def stamp(moment: datetime | int | None) -> str:
    at = _moment(moment)
    return NOTHING if at is None else f"{at:%Y-%m-%d %H:%M} UTC"


def short_stamp(moment: datetime | int | None) -> str:
    """Write a time without its year, for narrow places."""
    at = _moment(moment)
    return NOTHING if at is None else f"{at:%m-%d %H:%M} UTC"


def state_name(state: str) -> str:
    return state.replace("_", " ")


def model_name(model: str | None) -> str:
    """Return the model's name for a batch, a worker or usage; None stands for documents, which need no model."""
    return DOCUMENTS if model is None else shown_model(model)


def tone(state: str) -> str:
    """Return the tone of a batch's, a run's or an extraction's state: good, warn, bad or none."""
    return _TONES.get(state, "")


def _moment(moment: datetime | int | None) -> datetime | None:
    return datetime.fromtimestamp(moment, UTC) if isinstance(moment, int) else moment
