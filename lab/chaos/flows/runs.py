"""Runs of pipelines of two steps, triggered and scheduled, and chains of batches."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from lab.chaos import checked_batches
from lab.chaos.expected import Lines
from lab.chaos.flows.place import FlowOutcome, Place
from lab.chaos.stack import MODEL
from lab.no_compute.stated import stating

_NUM_ROWS = 5
_CAPS = (None, None, None, 900, 700)
"""Most tokens of a run, by pipeline: enough, hardly enough, and too few for the second step."""
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
_NUM_SCHEDULES = 2
_ENDS = ("succeeded", "failed", "cancelled", "skipped")


def add_pipelines(place: Place) -> None:
    """Create the tenant's pipelines, and schedules of every minute for some more of them."""
    for number, cap in enumerate(_CAPS):
        _add_pipeline(place, f"triggered-{number}", cap)
    for name in scheduled_pipelines(place):
        _add_pipeline(place, name, None)
        schedule = {"pipeline": name, "name": name, "cron": "* * * * *", "overlap": "queue_all", "catch_up": "all"}
        place.client.call("POST", "/schedules", json=schedule, is_done=(409,))


def pause_schedules(place: Place) -> None:
    """Let no further run be made by schedules."""
    for name in scheduled_pipelines(place):
        place.client.call("POST", f"/schedules/{name}/pause")


def trigger(place: Place, name: str, rng: Random) -> FlowOutcome:
    """Trigger a run, wait for its end, and check its output."""
    pipeline = f"triggered-{rng.randrange(len(_CAPS))}"
    headers = {"Idempotency-Key": name}
    run_id = place.client.call("POST", "/runs", json={"pipeline": pipeline}, headers=headers)["id"]
    if rng.random() < 0.1:
        place.client.call("POST", f"/runs/{run_id}/cancel", is_done=(409,))
    return outcome(place, pipeline, until_ended(place, run_id))


def scheduled_pipelines(place: Place) -> list[str]:
    """Return the names of the tenant's pipelines that have a schedule."""
    return [] if place.is_tight else [f"scheduled-{number}" for number in range(_NUM_SCHEDULES)]


def until_ended(place: Place, run_id: str) -> dict[str, Any]:
    """Return a run once it has ended."""
    return place.client.ended(f"/runs/{run_id}", lambda run: run["status"] in _ENDS)


def outcome(place: Place, pipeline: str, run: Mapping[str, Any]) -> FlowOutcome:
    """Check a run that has ended."""
    problems = list(_wrong(place, pipeline, run))
    return FlowOutcome(recipe="run", flow_id=run["id"], status=run["status"], num_items=_NUM_ROWS, problems=problems)


def chain(place: Place, name: str, rng: Random) -> FlowOutcome:
    """Run batches each of which starts after the one before; check their files, bills and order."""
    parts = [Lines(name=f"{name}-{number}", num=rng.randrange(1, 40), model=MODEL) for number in range(3)]
    ids: list[str] = []
    for lines in parts:
        ids.append(checked_batches.submit(place.client, lines, **({"after": ids[-1]} if ids else {})))
    ended = [checked_batches.until_ended(place.client, batch_id) for batch_id in ids]
    problems = []
    for batch, lines in zip(ended, parts, strict=True):
        problems += checked_batches.check(place.stack, place.client, batch, lines)[1]
        if batch["status"] != "completed":
            problems.append(f"batch {batch['id']} is {batch['status']}: {batch['errors']}")
    for before, after in itertools.pairwise(ended):
        if after["in_progress_at"] is None or after["in_progress_at"] < before["completed_at"]:
            problems.append(f"{after['id']} began before {before['id']} had completed")
    num_lines = sum(lines.num for lines in parts)
    return FlowOutcome(
        recipe="after", flow_id=ids[-1], status=ended[-1]["status"], num_items=num_lines, problems=problems
    )


def _add_pipeline(place: Place, name: str, cap: int | None) -> None:
    place.put(f"{name}/rows.jsonl", [_row(name, number) for number in range(_NUM_ROWS)])
    first = {
        "name": "fields",
        "source": {"store": "documents", "keys": f"{name}/*.jsonl"},
        "prompt": "Read: {{ text }}",
        "schema": _SCHEMA,
        "model": MODEL,
        "parameters": {"max_tokens": 64},
    }
    second = {
        "name": "mails",
        "source": {"step": "fields"},
        "prompt": f"Write: {stating('to {{ previous.json.name }}')}",
        "model": MODEL,
        "parameters": {"max_tokens": 64},
        "output": {"store": "results", "keys": "{pipeline}/{run}/part-{n}.jsonl"},
    }
    body = {"name": name, "steps": [first, second]} | ({} if cap is None else {"max_tokens": cap})
    place.client.call("POST", "/pipelines", json=body, is_done=(409,))


def _row(pipeline: str, number: int) -> dict[str, Any]:
    """Return a row of a source; the last two have the same text, so that one line is a copy."""
    return {"id": number, "text": stating(json.dumps({"name": _name(pipeline, number)}))}


def _name(pipeline: str, number: int) -> str:
    return f"{pipeline} row {min(number, _NUM_ROWS - 2)}"


def _wrong(place: Place, pipeline: str, run: Mapping[str, Any]) -> Iterator[str]:
    if run["status"] != "succeeded":
        if run["status"] != "cancelled" and not _is_refused(place, pipeline, str(run["reason"])):
            yield f"it is {run['status']}: {run['reason']}"
        return
    files = [file["key"] for file in run["steps"][-1]["files"]]
    folder = f"{pipeline}/{run['id']}"
    if sorted(place.keys(folder)) != sorted([*files, f"{folder}/_SUCCESS"]):
        yield f"its folder has {place.keys(folder)}, and its step has published {files}"
    rows = [row for key in files for row in place.rows(key)]
    found = [(row["id"], row["answer"], row["error"]) for row in rows]
    expected = [(number, f"to {_name(pipeline, number)}", None) for number in range(_NUM_ROWS)]
    if sorted(found) != expected:
        yield f"its output has {found}, not {expected}"


def _is_refused(place: Place, pipeline: str, reason: str) -> bool:
    """Return whether a run may fail for this reason, as its cap or its tenant's budget has no room."""
    number = int(pipeline.rpartition("-")[2])
    is_capped = pipeline.startswith("triggered") and _CAPS[number] is not None
    return (is_capped and "max_tokens" in reason) or place.may_refuse(reason)
