"""`tokenmill runs …`: trigger, follow and stop runs."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from cli.calls import named, server
from cli.line_tally import SOME_LINES_FAILED
from cli.options import AsJson, IdempotencyKey, Newest
from cli.table import print_table, when
from features.pipelines.commands.objects import Name, RunId, delete_object, print_object
from features.pipelines.commands.shown import RUN_COLUMNS, failed_rows, run_row
from features.pipelines.commands.watching import watch_run

app = typer.Typer(help="Runs of pipelines.", no_args_is_help=True)


@app.command("trigger")
def runs_trigger(
    pipeline: Name,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run until it ends, as `runs watch` does.")] = False,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline now, and print the run's id.

    With --wait, --json prints the run once it has ended; its id and progress go to standard error.
    """
    with server() as calls:
        created = calls.post("/runs", {"pipeline": pipeline}, key=idempotency_key)
        if as_json and not wait:
            print(json.dumps(created, indent=2))
            return
        print(created["id"], file=sys.stderr if as_json else sys.stdout, flush=True)
        if wait:
            _watch(calls, created["id"], as_json=as_json)


@app.command("list")
def runs_list(
    pipeline: Annotated[str | None, typer.Option(help="Only runs of this pipeline.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Only runs of this schedule.")] = None,
    status: Annotated[str | None, typer.Option(help="Only runs with this status, such as failed.")] = None,
    limit: Newest = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest runs, with the reason where one failed or was skipped."""
    with server() as calls:
        runs = calls.pages("/runs", limit=limit, pipeline=pipeline, schedule=schedule, status=status)
    if as_json:
        print(json.dumps(runs, indent=2))
        return
    rows = [run_row(run, when(run["scheduled_for"])) for run in runs]
    print_table(RUN_COLUMNS, rows, numbers=("rows", "failed"), below="reason")


@app.command("show")
def runs_show(run_id: RunId) -> None:
    """Print a run as JSON: its steps, batches and files."""
    print_object("runs", run_id)


@app.command("watch")
def runs_watch(run_id: RunId) -> None:
    """Follow a run until it ends; exit status 1 unless it succeeds, 3 if rows have no answer."""
    with server() as calls:
        _watch(calls, run_id)


def _watch(calls: Any, run_id: str, *, as_json: bool = False) -> None:

    run = watch_run(calls, run_id, out=sys.stderr if as_json else None)
    if as_json:
        print(json.dumps(run, indent=2))
    if run["status"] != "succeeded":
        raise typer.Exit(1)
    if failed_rows(run):
        raise typer.Exit(SOME_LINES_FAILED)


@app.command("cancel")
def runs_cancel(run_id: RunId) -> None:
    """Cancel a run and the batch that it waits for."""
    _act_on_run(run_id, "/cancel")


@app.command("delete")
def runs_delete(run_id: RunId) -> None:
    """Delete a run that has ended; its outputs and batches are kept."""
    delete_object("runs", run_id)


@app.command("resume")
def runs_resume(run_id: RunId) -> None:
    """Resume a failed run where it stopped."""
    _act_on_run(run_id, "/resume")


def _act_on_run(run_id: str, action: str) -> None:

    with server() as calls:
        run = calls.post(named("runs", run_id, action))
    print(f"{run['id']} {run['status']}")
