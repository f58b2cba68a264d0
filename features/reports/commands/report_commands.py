"""`tokenmill reports …`: show the report of a pipeline's day."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cli.calls import named, server
from cli.ids import require_id
from cli.options import AsJson
from cli.table import escaped
from features.reports.texts import lines, title

app = typer.Typer(help="Reports: what became of a pipeline's day, beside the nights before.", no_args_is_help=True)

Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="Name or id.", callback=require_id)]


@app.callback()
def _group() -> None: ...


@app.command()
def show(
    pipeline: Pipeline,
    day: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="[default: the latest day whose runs were all due]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a day of a pipeline: its end, cost, failed rows, drift, and the next run."""
    with server() as calls:
        report = calls.get(named("pipelines", pipeline, "/report"), day=day)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    print(*(escaped(line) for line in (title(report), *lines(report))), sep="\n")
