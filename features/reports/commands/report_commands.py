"""`tokenmill reports …`: show the report of a pipeline's day, and say who gets it by mail."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cli.calls import named, server
from cli.ids import require_id
from cli.options import AsJson
from cli.table import escaped, when
from features.reports.texts import lines, title

_SUBSCRIPTION = "/report/subscription"

app = typer.Typer(help="Reports: what became of a pipeline's day, beside the nights before.", no_args_is_help=True)

Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="Name or id.", callback=require_id)]


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
    print(*(escaped(line) for line in (title(report), *lines(report, why=report["reason"]))), sep="\n")


@app.command()
def subscribe(
    pipeline: Pipeline,
    at: Annotated[str, typer.Option(help="When it is due each day, in the time zone of the schedule.")] = "07:00",
    mail: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Who gets it by mail; may be given again.")
    ] = None,
    include_rows: Annotated[
        bool, typer.Option("--include-rows", help="Mail texts of failed rows, too, not only counts and links.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Have a report each day, in place of an earlier subscription of the pipeline."""
    body = {"at": at, "mail_to": mail or [], "include_rows": include_rows}
    with server() as calls:
        made = calls.put(named("pipelines", pipeline, _SUBSCRIPTION), body)
    if as_json:
        print(json.dumps(made, indent=2))
        return
    to = f" by mail to {', '.join(made['mail_to'])}" if made["mail_to"] else ""
    print(f"a report each day at {made['at']}{to}, next at {when(made['next_at'])}")


@app.command()
def subscription(pipeline: Pipeline) -> None:
    """Print the subscription of a pipeline as JSON, with what became of its last mail."""
    with server() as calls:
        print(json.dumps(calls.get(named("pipelines", pipeline, _SUBSCRIPTION)), indent=2))


@app.command()
def unsubscribe(pipeline: Pipeline) -> None:
    """End the daily reports of a pipeline; a mail that waits is not sent."""
    with server() as calls:
        calls.delete(named("pipelines", pipeline, _SUBSCRIPTION))
    print(f"no more reports of {pipeline}")
