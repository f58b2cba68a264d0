"""`tokenmill schedules …`: list, show, pause, resume, backfill and delete schedules."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cli.calls import named, server
from cli.options import AsJson, Newest
from cli.table import print_fields, print_table, when
from features.pipelines.commands.objects import Name, delete_object
from features.pipelines.commands.shown import next_run_lines

app = typer.Typer(help="Schedules: when pipelines run.", no_args_is_help=True)


@app.command("list")
def schedules_list(
    pipeline: Annotated[str | None, typer.Option(help="Only schedules of this pipeline.")] = None,
    limit: Newest = 100,
    as_json: AsJson = False,
) -> None:
    """List your schedules, newest first, with the next run of each."""
    with server() as calls:
        schedules = calls.pages("/schedules", limit=limit, pipeline=pipeline)
    if as_json:
        print(json.dumps(schedules, indent=2))
        return
    rows = [(s["name"], s["cron"], s["time_zone"], _next_of(s), s["pause_reason"]) for s in schedules]
    print_table(("name", "cron", "time zone", "next run", "paused because"), rows)


def _next_of(schedule: dict[str, Any]) -> str:
    if schedule["paused_at"] is not None:
        return "paused"
    return schedule["next_runs"][0]["local"] if schedule["next_runs"] else "none"


@app.command("show")
def schedules_show(name: Name, as_json: AsJson = False) -> None:
    """Show a schedule and its next five runs, in its zone and in UTC."""
    with server() as calls:
        schedule = calls.get(named("schedules", name))
    if as_json:
        print(json.dumps(schedule, indent=2))
        return
    hidden = ("object", "next_runs")
    fields = {key: value for key, value in schedule.items() if key not in hidden and value is not None}
    print_fields({key: when(value) if key.endswith("_at") else value for key, value in fields.items()})
    print(*next_run_lines(schedule), sep="\n")


@app.command("pause")
def schedules_pause(name: Name) -> None:
    """Pause a schedule: it makes no runs until it is resumed."""
    _act_on_schedule(name, "/pause", "paused")


@app.command("resume")
def schedules_resume(name: Name) -> None:
    """Resume a schedule from now on."""
    _act_on_schedule(name, "/resume", "resumed")


def _act_on_schedule(name: str, action: str, done: str) -> None:

    with server() as calls:
        schedule = calls.post(named("schedules", name, action))
    print(f"{done} {schedule['name']}")
    print(*next_run_lines(schedule), sep="\n")


@app.command("backfill")
def schedules_backfill(
    name: Name,
    start: Annotated[str, typer.Option("--from", help="Such as 2026-11-01T00:00:00Z.")],
    end: Annotated[str, typer.Option("--to", help="Included.")],
) -> None:
    """Queue a run for each time of a schedule in a past range, and print their ids."""
    with server() as calls:
        backfill = calls.post(named("schedules", name, "/backfill"), {"start": start, "end": end})
    for run_id in backfill["runs"]:
        print(run_id)
    if not backfill["runs"]:
        print("no run is missing in this range")


@app.command("delete")
def schedules_delete(name: Name) -> None:
    """Delete a schedule; its runs are kept."""
    delete_object("schedules", name)
