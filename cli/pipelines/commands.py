"""`tokenmill pipelines …`, `schedules …`, `runs …`: pipelines on a running server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.ids import given
from cli.options import AsJson
from jobs.errors import InputError

pipelines_app = typer.Typer(help="Pipelines: rows through prompts, in steps.", no_args_is_help=True)
schedules_app = typer.Typer(help="Schedules: when pipelines run.", no_args_is_help=True)
runs_app = typer.Typer(help="Runs of pipelines.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Its name or id.", callback=given)]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID", callback=given)]
Limit = Annotated[int, typer.Option(min=1, help="The newest ones.")]


def register(app: typer.Typer) -> None:
    app.add_typer(pipelines_app, name="pipelines")
    app.add_typer(schedules_app, name="schedules")
    app.add_typer(runs_app, name="runs")


@pipelines_app.command()
def apply(
    path: Annotated[Path, typer.Argument(metavar="PIPELINE.yaml")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first three prompts and an estimate; change nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
) -> None:
    """Make the pipeline of a file and its schedules, or change those there are; doing it again changes nothing."""
    from cli.pipelines.apply import read_file
    from cli.pipelines.calls import named, server
    from cli.pipelines.shown import preview_lines

    if as_json and not dry_run:
        raise InputError("--json is for what --dry-run shows; give both, or neither")
    wanted = read_file(path)
    with server() as calls:
        if dry_run:
            preview = calls.post("/pipelines/preview", {"name": wanted.name, **wanted.definition})
            print(json.dumps(preview, indent=2) if as_json else "\n".join(preview_lines(preview)))
            return
        before = calls.find(named("pipelines", wanted.name))
        _require_own(calls, None if before is None else before["id"], wanted.schedules)
        if before is None:
            made = calls.post("/pipelines", {"name": wanted.name, **wanted.definition})
        else:
            caps = {"max_tokens": None, "max_cost": None}
            made = calls.patch(named("pipelines", wanted.name), caps | wanted.definition)
        is_changed = before is None or before["version"] != made["version"]
        what = "made" if before is None else "changed" if is_changed else "as it was"
        print(f"pipeline {made['name']} version {made['version']}: {what}")
        for schedule in wanted.schedules:
            _apply_schedule(calls, wanted.name, schedule)


def _require_own(calls: Any, pipeline_id: str | None, schedules: list[dict[str, Any]]) -> None:
    """Refuse, before anything is changed, names of schedules of another pipeline."""
    from cli.pipelines.calls import named

    for schedule in schedules:
        before = calls.find(named("schedules", schedule["name"]))
        if before is not None and before["pipeline_id"] != pipeline_id:
            raise InputError(
                f"schedule {schedule['name']!r} is there and belongs to another pipeline, {before['pipeline_id']}; "
                "give the file's schedule another name, or delete that one first"
            )


def _apply_schedule(calls: Any, pipeline: str, wanted: dict[str, Any]) -> None:
    from cli.pipelines.apply import SCHEDULE_DEFAULTS
    from cli.pipelines.calls import named

    before = calls.find(named("schedules", wanted["name"]))
    if before is None:
        found = calls.post("/schedules", {"pipeline": pipeline, **wanted})
    else:
        found = calls.patch(named("schedules", wanted["name"]), {**SCHEDULE_DEFAULTS, **wanted})
    print(f"schedule {found['name']}: {'made' if before is None else 'applied'}")
    _print_next(found)


def _print_next(schedule: dict[str, Any]) -> None:
    for tick in schedule["next_runs"]:
        note = f"  ({tick['note']})" if tick["note"] else ""
        print(f"  {tick['local']}  {tick['utc']}{note}")
    if not schedule["next_runs"]:
        print("  paused" if schedule["paused_at"] is not None else "  it runs no more")


@pipelines_app.command("list")
def pipelines_list(limit: Limit = 100, as_json: AsJson = False) -> None:
    """List your pipelines, newest first."""
    from cli.pipelines.calls import server
    from cli.table import print_table, when

    with server() as calls:
        found = calls.pages("/pipelines", limit=limit)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    header = ("name", "version", "steps", "changed")
    print_table(header, [(p["name"], p["version"], len(p["steps"]), when(p["updated_at"])) for p in found])


@pipelines_app.command("show")
def pipelines_show(name: Name) -> None:
    """Print a pipeline as JSON."""
    _print_object("pipelines", name)


@pipelines_app.command("delete")
def pipelines_delete(name: Name) -> None:
    """Delete a pipeline and its schedules; its runs stay to be seen."""
    from cli.pipelines.calls import named, server

    with server() as calls:
        calls.delete(named("pipelines", name))
    print(f"deleted {name}")


@schedules_app.command("list")
def schedules_list(
    pipeline: Annotated[str | None, typer.Option(help="Of this pipeline.")] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List your schedules, newest first, with the next run of each."""
    from cli.pipelines.calls import server
    from cli.table import print_table

    with server() as calls:
        found = calls.pages("/schedules", limit=limit, pipeline=pipeline)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    rows = [(s["name"], s["cron"], s["time_zone"], _next_of(s), s["pause_reason"]) for s in found]
    print_table(("name", "cron", "time zone", "next run", "paused because"), rows)


def _next_of(schedule: dict[str, Any]) -> str:
    if schedule["paused_at"] is not None:
        return "paused"
    return schedule["next_runs"][0]["local"] if schedule["next_runs"] else "none"


@schedules_app.command("show")
def schedules_show(name: Name, as_json: AsJson = False) -> None:
    """Show a schedule and its next five runs, in its zone and in UTC."""
    from cli.pipelines.calls import named, server
    from cli.table import print_fields, when

    with server() as calls:
        found = calls.get(named("schedules", name))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    hidden = ("object", "next_runs")
    said = {key: value for key, value in found.items() if key not in hidden and value is not None}
    print_fields({key: when(value) if key.endswith("_at") else value for key, value in said.items()})
    _print_next(found)


@schedules_app.command("pause")
def schedules_pause(name: Name) -> None:
    """Let a schedule make no more runs until it is resumed."""
    _act_on_schedule(name, "/pause", "paused")


@schedules_app.command("resume")
def schedules_resume(name: Name) -> None:
    """Let a schedule go on from now."""
    _act_on_schedule(name, "/resume", "resumed")


def _act_on_schedule(name: str, action: str, done: str) -> None:
    from cli.pipelines.calls import named, server

    with server() as calls:
        found = calls.post(named("schedules", name, action))
    print(f"{done} {found['name']}")
    _print_next(found)


@schedules_app.command("backfill")
def schedules_backfill(
    name: Name,
    start: Annotated[str, typer.Option("--from", help="Such as 2026-11-01T00:00:00Z.")],
    end: Annotated[str, typer.Option("--to", help="Included.")],
) -> None:
    """Queue a run for each time of a schedule in a range that is over, and print their ids."""
    from cli.pipelines.calls import named, server

    with server() as calls:
        found = calls.post(named("schedules", name, "/backfill"), {"start": start, "end": end})
    for run_id in found["runs"]:
        print(run_id)
    if not found["runs"]:
        print("each of them is there already")


@schedules_app.command("delete")
def schedules_delete(name: Name) -> None:
    """Delete a schedule; its runs stay to be seen."""
    from cli.pipelines.calls import named, server

    with server() as calls:
        calls.delete(named("schedules", name))
    print(f"deleted {name}")


@runs_app.command("trigger")
def runs_trigger(
    pipeline: Name,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end, as watch does.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline now, and print the run's id.

    With --wait, --json is the run as it has ended; its id and how it goes on are then on standard error.
    """
    from cli.pipelines.calls import server

    with server() as calls:
        found = calls.post("/runs", {"pipeline": pipeline})
        if as_json and not wait:
            print(json.dumps(found, indent=2))
            return
        print(found["id"], file=sys.stderr if as_json else sys.stdout, flush=True)
        if wait:
            _watch(calls, found["id"], as_json=as_json)


@runs_app.command("list")
def runs_list(
    pipeline: Annotated[str | None, typer.Option(help="Of this pipeline.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Of this schedule.")] = None,
    status: Annotated[str | None, typer.Option(help="Such as failed or skipped.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest runs, and why those that failed or were skipped did."""
    from cli.pipelines.calls import server
    from cli.pipelines.shown import RUN_COLUMNS, run_row
    from cli.table import print_table, when

    with server() as calls:
        found = calls.pages("/runs", limit=limit, pipeline=pipeline, schedule=schedule, status=status)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    rows = [run_row(run, when(run["scheduled_for"])) for run in found]
    print_table(RUN_COLUMNS, rows, numbers=("rows", "failed"), below="reason")


@runs_app.command("show")
def runs_show(run_id: RunId) -> None:
    """Print a run as JSON: its steps, batches and files."""
    _print_object("runs", run_id)


@runs_app.command("watch")
def runs_watch(run_id: RunId) -> None:
    """Follow a run to its end; the exit status is 1 unless it succeeds, and 3 where rows of it have no answer."""
    from cli.pipelines.calls import server

    with server() as calls:
        _watch(calls, run_id)


def _watch(calls: Any, run_id: str, *, as_json: bool = False) -> None:
    from cli.line_tally import SOME_LINES_FAILED
    from cli.pipelines.shown import failed_rows
    from cli.pipelines.watching import watch_run

    run = watch_run(calls, run_id, out=sys.stderr if as_json else None)
    if as_json:
        print(json.dumps(run, indent=2))
    if run["status"] != "succeeded":
        raise typer.Exit(1)
    if failed_rows(run):
        raise typer.Exit(SOME_LINES_FAILED)


@runs_app.command("cancel")
def runs_cancel(run_id: RunId) -> None:
    """Stop a run, and the batch that it waits for."""
    _act_on_run(run_id, "/cancel")


@runs_app.command("delete")
def runs_delete(run_id: RunId) -> None:
    """Forget a run that has ended; what it published stays, and its batches."""
    from cli.pipelines.calls import named, server

    with server() as calls:
        calls.delete(named("runs", run_id))
    print(f"deleted {run_id}")


@runs_app.command("resume")
def runs_resume(run_id: RunId) -> None:
    """Let a failed run go on where it stopped."""
    _act_on_run(run_id, "/resume")


def _act_on_run(run_id: str, action: str) -> None:
    from cli.pipelines.calls import named, server

    with server() as calls:
        found = calls.post(named("runs", run_id, action))
    print(f"{found['id']} {found['status']}")


def _print_object(kind: str, name: str) -> None:
    from cli.pipelines.calls import named, server

    with server() as calls:
        print(json.dumps(calls.get(named(kind, name)), indent=2))
