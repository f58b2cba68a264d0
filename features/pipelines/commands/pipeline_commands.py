"""`tokenmill pipelines …`: apply a file, list, show and delete pipelines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.calls import named, server
from cli.options import AsJson, Newest
from cli.table import print_table, when
from features.pipelines.commands.apply import SCHEDULE_DEFAULTS, read_file
from features.pipelines.commands.objects import Name, delete_object, print_object
from features.pipelines.commands.shown import next_run_lines, preview_lines
from jobs.errors import InputError

app = typer.Typer(help="Pipelines: steps that send rows through prompts.", no_args_is_help=True)


@app.command()
def apply(
    path: Annotated[Path, typer.Argument(metavar="PIPELINE.yaml")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first three prompts and an estimate; change nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
) -> None:
    """Create or change the pipeline of a file and its schedules; applying the same file again changes nothing."""
    if as_json and not dry_run:
        raise InputError("--json needs --dry-run; give both, or neither")
    file = read_file(path)
    with server() as calls:
        if dry_run:
            preview = calls.post("/pipelines/preview", {"name": file.name, **file.definition})
            print(json.dumps(preview, indent=2) if as_json else "\n".join(preview_lines(preview)))
            return
        before = calls.find(named("pipelines", file.name))
        _require_own(calls, None if before is None else before["id"], file.schedules)
        if before is None:
            applied = calls.post("/pipelines", {"name": file.name, **file.definition})
        else:
            caps = {"max_tokens": None, "max_cost": None}
            applied = calls.patch(named("pipelines", file.name), caps | file.definition)
        is_changed = before is None or before["version"] != applied["version"]
        what = "created" if before is None else "changed" if is_changed else "unchanged"
        print(f"pipeline {applied['name']} version {applied['version']}: {what}")
        for schedule in file.schedules:
            _apply_schedule(calls, file.name, schedule)


def _require_own(calls: Any, pipeline_id: str | None, schedules: list[dict[str, Any]]) -> None:
    """Raise InputError, before anything is changed, where a schedule of that name belongs to another pipeline."""
    for schedule in schedules:
        before = calls.find(named("schedules", schedule["name"]))
        if before is not None and before["pipeline_id"] != pipeline_id:
            raise InputError(
                f"schedule {schedule['name']!r} exists and belongs to another pipeline, {before['pipeline_id']}; "
                "give the file's schedule another name, or delete that one first"
            )


def _apply_schedule(calls: Any, pipeline: str, schedule: dict[str, Any]) -> None:

    before = calls.find(named("schedules", schedule["name"]))
    if before is None:
        applied = calls.post("/schedules", {"pipeline": pipeline, **schedule})
    else:
        applied = calls.patch(named("schedules", schedule["name"]), {**SCHEDULE_DEFAULTS, **schedule})
    print(f"schedule {applied['name']}: {'created' if before is None else 'applied'}")
    print(*next_run_lines(applied), sep="\n")


@app.command("list")
def pipelines_list(limit: Newest = 100, as_json: AsJson = False) -> None:
    """List your pipelines, newest first."""
    with server() as calls:
        pipelines = calls.pages("/pipelines", limit=limit)
    if as_json:
        print(json.dumps(pipelines, indent=2))
        return
    header = ("name", "version", "steps", "changed")
    print_table(header, [(p["name"], p["version"], len(p["steps"]), when(p["updated_at"])) for p in pipelines])


@app.command("show")
def pipelines_show(name: Name) -> None:
    """Print a pipeline as JSON."""
    print_object("pipelines", name)


@app.command("delete")
def pipelines_delete(name: Name) -> None:
    """Delete a pipeline and its schedules; its runs are kept."""
    delete_object("pipelines", name)
