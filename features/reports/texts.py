"""A report as lines of text, from its object in the API: for a terminal, a mail and a chat. Pure.

The lines hold counts, names and ids, and no text of a row or of an answer unless `why` has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from jobs.accounts.money import PICOS_A_MICRO, in_currency
from jobs.counted import counted

STATUS_WORDS = {
    "no_run": "no run",
    "in_progress": "still running",
    "succeeded": "finished",
    "failed": "failed",
    "skipped": "skipped",
    "cancelled": "cancelled",
}
_WHAT = {"failed_rate": "without an answer", "null_rate": "null", "labels": "labels", "length": "length"}
_MOST_FAILED_STEPS = 5
_MOST_LABELS = 2


def title(report: Mapping[str, Any]) -> str:
    """Return the report in one line: what became of the day, its failed rows, and whether it drifted."""
    parts = [STATUS_WORDS[report["status"]]]
    if report["failed"]:
        parts.append(f"{counted(report['failed'], 'row')} failed")
    num_drifts = len(_drifts(report))
    if num_drifts:
        parts.append(counted(num_drifts, "drift"))
    return f"{report['pipeline']} {report['day']}: {', '.join(parts)}"


def lines(report: Mapping[str, Any], *, why: str | None = None) -> Iterator[str]:
    """Yield the report, without its title; `why` says why its runs ended as they did."""
    yield _status_line(report, why)
    yield f"rows: {report['rows']:,} read, {report['failed']:,} without an answer"
    cost, before = (money(report[name]) for name in ("cost_micros", "cost_micros_day_before"))
    yield f"cost: {cost} {report['currency']}, {counted(report['total_tokens'], 'token')}; the day before {before}"
    yield from failure_lines(report)
    yield from _drift_lines(report)
    yield _next_line(report)


def whole(report: Mapping[str, Any], *, site: str) -> Iterator[str]:
    """Yield the report with its title, and with links where the address of the dashboard is known.

    A run's reason may quote a row or an answer, so a command that shows it stands in its place.
    """
    yield title(report)
    yield ""
    shows_why = f"tokenmill reports show {report['pipeline_id']} --day {report['day']}"
    yield from lines(report, why=shows_why if report["reason"] else None)
    if site:
        base = site.rstrip("/")
        yield ""
        yield f"{base}/reports/{report['pipeline_id']}?day={report['day']}"
        retried = [step for step in report["failed_steps"] if step["retry"] is not None]
        yield from (f"{base}/batches/{step['batch_id']}" for step in retried[:_MOST_FAILED_STEPS])


def failure_lines(report: Mapping[str, Any]) -> Iterator[str]:
    steps = report["failed_steps"]
    for step in steps[:_MOST_FAILED_STEPS]:
        codes = ", ".join(f"{code} {number:,}" for code, number in step["codes"].items())
        yield f"failed: {step['failed']:,} of {step['rows']:,} rows of step {step['step']}{codes and f' ({codes})'}"
        if step["retry"] is not None:
            lines = counted(step["retryable"], "line")
            yield f"  run {lines} again as they were: {step['retry']}"
        if step["failed_rows_file_id"] is not None:
            yield f"  fix the prompt, retry these {step['failed']:,}: {_download(step)}"
    if len(steps) > _MOST_FAILED_STEPS:
        yield f"  {counted(len(steps) - _MOST_FAILED_STEPS, 'further step')} with failed rows"


def _download(step: Mapping[str, Any]) -> str:
    return f"tokenmill files download {step['failed_rows_file_id']} -o failed.jsonl"


def measure_words(measure: Mapping[str, Any]) -> str:
    """Return a measure beside what is usual, as a line."""
    shown = shown_measure(measure)
    return f"{shown.where}: {shown.what} {shown.value}, usually {shown.usual} (drift beyond {shown.beyond})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMeasure:
    """A measure as texts."""

    where: str
    """The step, and the column of its answers."""
    what: str
    value: str
    usual: str
    beyond: str
    """Where drift begins."""


def shown_measure(measure: Mapping[str, Any]) -> ShownMeasure:
    where = measure["step"] if measure["field"] is None else f"{measure['step']}.{measure['field']}"
    write = _number if measure["measure"] == "length" else _percent
    value, usual, low, high = (write(measure[name]) for name in ("value", "usual", "low", "high"))
    beyond = f"{low} to {high}" if measure["low"] > 0 else high
    if measure["labels"]:
        labels = measure["labels"][:_MOST_LABELS]
        value = ", ".join(f"{one['label']} {_percent(one['share'])}" for one in labels)
        usual = ", ".join(f"{one['label']} {_percent(one['usual'])}" for one in labels)
        beyond = f"{high} of answers moved, and {_percent(measure['value'])} have"
    return ShownMeasure(where=where, what=_WHAT[measure["measure"]], value=value, usual=usual, beyond=beyond)


def money(micros: int) -> str:
    return in_currency(micros * PICOS_A_MICRO)


def local_time(unix_seconds: int, zone: str) -> str:
    """Return a moment in a time zone, with the zone's abbreviation."""
    return f"{datetime.fromtimestamp(unix_seconds, tz=ZoneInfo(zone)):%Y-%m-%d %H:%M %Z}"


def end_words(eta: Mapping[str, Any], zone: str) -> str | None:
    """Return an expected end with its range; None if it is unknown."""
    if eta["eta"] is None:
        return None
    names = ("eta", "eta_earliest", "eta_latest")
    expected, *bounds = (datetime.fromtimestamp(eta[name], tz=ZoneInfo(zone)) for name in names)
    form = "%H:%M" if all(bound.date() == expected.date() for bound in bounds) else "%Y-%m-%d %H:%M"
    return f"{expected:%Y-%m-%d %H:%M %Z} ({' to '.join(f'{bound:{form}}' for bound in bounds)})"


def _status_line(report: Mapping[str, Any], why: str | None) -> str:
    words, zone = STATUS_WORDS[report["status"]], report["time_zone"]
    if report["ended_at"] is not None:
        words += f" at {local_time(report['ended_at'], zone)}"
    runs = f", {report['num_runs']:,} runs" if report["num_runs"] > 1 else ""
    end = end_words(report, zone)
    expected = f", expected to end at {end}" if end is not None else ""
    return f"status: {words}{runs}{expected}{f'; why: {why}' if why else ''}"


def _drifts(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in report["drift"]["measures"] if one["drifted"]]


def _drift_lines(report: Mapping[str, Any]) -> Iterator[str]:
    drift = report["drift"]
    drifts = _drifts(report)
    nights = counted(drift["nights"], "night")
    if drift["nights"] < drift["nights_needed"]:
        yield f"drift: not compared, as there are {nights} before, and {drift['nights_needed']} are needed"
    elif not drift["measures"]:
        yield "drift: not compared, as there are no answers of the day, or too few nights with them"
    elif not drifts:
        yield f"drift: none beside the last {nights} ({counted(len(drift['measures']), 'measure')})"
    for one in drifts:
        yield f"drift: {measure_words(one)}"
    if drifts and drift["changed_steps"]:
        yield f"  changed since the last night: {', '.join(drift['changed_steps'])}"


def _next_line(report: Mapping[str, Any]) -> str:
    run = report["next_run"]
    if run is None:
        return "next run: none is scheduled"
    end = end_words(run, report["time_zone"])
    ends = "its end is unknown" if end is None else f"its end, if it takes as long as the last ones, {end}"
    return f"next run: {local_time(run['at'], report['time_zone'])}; {ends}"


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
