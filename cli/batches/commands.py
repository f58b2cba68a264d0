"""`tokenmill batch …`: batches on a running server, through the official client."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer

from cli.batches import creating, fetching
from cli.batches.fields import batch_fields
from cli.batches.following import follow
from cli.batches.table import print_batches
from cli.client import client_from_environment, server_errors_as_sentences
from cli.ids import BatchId
from cli.options import AsJson, Day, FailOnErrors, IdempotencyKey, Newest, WaitForServer
from cli.table import print_fields, print_table, when
from cli.watching.watch import describe_errors
from features.lines.commands import lines
from jobs.states import AskedPriority, BatchState

app = typer.Typer(help="Create, follow and read batches on a running server.", no_args_is_help=True)
app.command()(creating.create)
app.command()(creating.check)

_SECONDS_OF_DAY = 86_400


@app.command("list")
def list_(
    limit: Newest = 20,
    *,
    name: Annotated[str | None, typer.Option(help="Part of its name, or of its input file's.")] = None,
    status: Annotated[list[BatchState] | None, typer.Option(help="May be given again.")] = None,
    metadata: Annotated[str | None, typer.Option(metavar="KEY=VALUE", help="A pair of its metadata.")] = None,
    since: Annotated[datetime | None, Day] = None,
    until: Annotated[datetime | None, Day] = None,
    cost_from: Annotated[str | None, typer.Option(help="In units of the currency.")] = None,
    cost_below: Annotated[str | None, typer.Option(help="In units of the currency.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the newest batches, those that meet every option."""
    wanted = {
        "name": name,
        "status": ",".join(one.value for one in status or ()) or None,
        "metadata": metadata,
        "created_from": since and _begin(since),
        "created_before": until and _begin(until) + _SECONDS_OF_DAY,
        "cost_from": cost_from,
        "cost_below": cost_below,
    }
    query = {each: value for each, value in wanted.items() if value is not None}
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        batches = list(islice(client.batches.list(limit=min(limit, 100), extra_query=query), limit))
    if as_json:
        print(json.dumps([batch.to_dict() for batch in batches], indent=2))
        return
    print_batches(batches)


@app.command()
def show(batch_id: BatchId, as_json: AsJson = False) -> None:
    """Show one batch."""
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        batch = client.batches.retrieve(batch_id)
    if as_json:
        print(batch.to_json())
        return
    print_fields(batch_fields(batch.to_dict()))
    if batch.errors:
        print(describe_errors(batch))


@app.command()
def watch(batch_id: BatchId, *, fail_on_errors: FailOnErrors = False, wait_for_server: WaitForServer = None) -> None:
    """Follow a batch until it ends; exit status 1 if it does not complete or every line fails."""
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        follow(client, batch_id, fail_on_errors=fail_on_errors, wait_for_server=wait_for_server)


@app.command()
def cancel(batch_id: BatchId) -> None:
    """Cancel a batch; results of finished lines are kept."""
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        print(client.batches.cancel(batch_id).status)


@app.command()
def change(
    batch_id: BatchId,
    *,
    name: Annotated[str | None, typer.Option(help="New name, also of a batch that has ended.")] = None,
    priority: Annotated[AskedPriority | None, typer.Option(help="New priority class.")] = None,
    window: Annotated[str | None, typer.Option(help="New completion window, from the creation of the batch.")] = None,
) -> None:
    """Change the name of a batch, or the priority class or the window of an open one."""
    from openai.types import Batch

    changes = {"name": name, "priority": priority and priority.value, "completion_window": window}
    body = {name: value for name, value in changes.items() if value is not None}
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        batch = client.post(f"/batches/{batch_id}", cast_to=Batch, body=body)
    extra = batch.model_extra or {}
    print(f"{extra.get('name') or batch.id}: class {extra.get('priority')}, to end by {when(batch.expires_at or 0)}")


@app.command()
def decisions(batch_id: BatchId, as_json: AsJson = False) -> None:
    """Show the scheduling decisions about a batch within the last day."""
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        log = client.get(f"/batches/{batch_id}/decisions", cast_to=dict[str, Any])["data"]
    if as_json:
        print(json.dumps(log, indent=2))
        return
    print_table(("last", "what"), [(when(one["last_at"]), one["message"]) for one in log])


@app.command()
def retry(
    batch_id: BatchId,
    *,
    window: Annotated[str | None, typer.Option(help="[default: the batch's window]")] = None,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Submit the failed lines of a batch as a new batch; print its id."""
    from openai.types import Batch

    body = {} if window is None else {"completion_window": window}
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        options: Any = {} if idempotency_key is None else {"headers": {"Idempotency-Key": idempotency_key}}
        batch = client.post(f"/batches/{batch_id}/retry", cast_to=Batch, body=body, options=options)
    print(batch.to_json() if as_json else batch.id)


def _begin(day: datetime) -> int:
    return int(day.replace(tzinfo=UTC).timestamp())


app.command()(fetching.results)
app.command()(lines)
