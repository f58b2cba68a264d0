"""Previews, schedules and runs as lines of text, from the objects of the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.counted import counted

ENDED = frozenset({"succeeded", "failed", "skipped", "cancelled"})


def preview_lines(preview: Mapping[str, Any]) -> Iterator[str]:
    """Yield the messages of a pipeline's first lines, then the estimate."""
    for line in preview["lines"]:
        yield line["custom_id"]
        for message in line["body"]["messages"]:
            first, *others = str(message["content"]).splitlines() or [""]
            yield f"  {message['role']:<9}  {first}".rstrip()
            yield from (f"{'':13}{other}".rstrip() for other in others)
        yield ""
    yield preview["summary"]


def next_run_lines(schedule: Mapping[str, Any]) -> Iterator[str]:
    """Yield a schedule's next runs, in its zone and in UTC, or why there are none."""
    for tick in schedule["next_runs"]:
        note = f"  ({tick['note']})" if tick["note"] else ""
        yield f"  {tick['local']}  {tick['utc']}{note}"
    if not schedule["next_runs"]:
        yield "  paused" if schedule["paused_at"] is not None else "  no more runs"


def run_row(run: Mapping[str, Any], scheduled_for: str) -> tuple[object, ...]:
    """Return the row of a run in a list, with the rows that it read and the failed ones of all steps."""
    steps = run["steps"]
    rows = steps[0]["rows"] if steps else ""
    return (run["id"], run["kind"], scheduled_for, run["status"], rows, failed_rows(run), run["reason"])


RUN_COLUMNS = ("id", "kind", "for", "status", "rows", "failed", "reason")


def failed_rows(run: Mapping[str, Any]) -> int:
    return sum(step["failed"] for step in run["steps"])


def progress_lines(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that describe a run; each stays the same until its step is done again."""
    if run["status"] == "queued":
        yield "queued: it starts in a moment, or when the pipeline's previous run has ended"
    for step in run["steps"]:
        yield f"{step['name']}: {counted(step['rows'], 'row')}"
        if step["status"] == "done":
            files = f", {counted(len(step['files']), 'file')}" if step["files"] else ""
            yield f"{step['name']}: done, {step['rows'] - step['failed']:,} answered, {step['failed']:,} failed{files}"
    if run["reason"] and run["status"] not in ENDED:
        yield f"{run['status']}: {run['reason']}"


def end_line(run: Mapping[str, Any]) -> str:
    because = f": {run['reason']}" if run["reason"] else ""
    used = f" after {counted(run['total_tokens'], 'token')}" if run["total_tokens"] else ""
    return f"{run['status']}{used}{because}"
