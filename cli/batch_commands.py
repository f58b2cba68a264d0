"""`tokenmill batch …`: batches on a running server, through the official client."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.ids import BatchId
from jobs.errors import InputError, ServiceError
from jobs.states import AskedPriority, InvalidLines, UncoveredLines

if TYPE_CHECKING:
    from openai import OpenAI

    from cli.line_tally import LineTally

app = typer.Typer(help="Create, follow and read batches on a running server.", no_args_is_help=True)

_PAGE = 1000
_LOOK_SECONDS = 1.0

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FailOnErrors = Annotated[bool, typer.Option("--fail-on-errors", help="Exit with status 3 if a line failed.")]


@app.command()
def create(
    source: Annotated[str, typer.Argument(metavar="IN.jsonl|FILE_ID", help="A local file is uploaded first.")],
    *,
    endpoint: Annotated[str | None, typer.Option(help="[default: the url of the file's first line]")] = None,
    window: Annotated[str, typer.Option(help="Time to finish in, such as 30m, 24h or 7d.")] = "24h",
    priority: Annotated[AskedPriority, typer.Option()] = AskedPriority.NORMAL,
    invalid_lines: Annotated[InvalidLines, typer.Option(help="What malformed lines do.")] = InvalidLines.FAIL,
    uncovered_lines: Annotated[
        UncoveredLines, typer.Option(help="What lines do that the token budget does not cover.")
    ] = UncoveredLines.WAIT,
    metadata: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="May be given again.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "--wait", help="Follow the batch until it ends.")] = False,
    fail_on_errors: FailOnErrors = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would take, and submit nothing.")] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --dry-run: wait until a worker has counted every token.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a batch and print its id.

    With --wait, exit status 1 if it does not complete or every line fails.
    """
    from cli.client import client_from_environment, server_errors_as_sentences
    from cli.file_commands import upload_file

    pairs = _pairs(metadata or [])
    if exact and not dry_run:
        raise InputError("--exact is for --dry-run. Give both, or none of them.")
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        path, is_uploaded = Path(source), False
        if path.exists() or not source.startswith("file"):
            endpoint = endpoint or _first_url(path)
            source = upload_file(client, path, purpose="batch").id
            is_uploaded = True
        if dry_run:
            call: dict[str, Any] = {
                "input_file_id": source, "completion_window": window, "priority": priority.value,
            } | ({"exact": True} if exact else {})  # fmt: skip
            try:
                _print_estimate(client, call | ({"endpoint": endpoint} if endpoint else {}), as_json=as_json)
            finally:
                if is_uploaded:
                    client.files.delete(source)
            return
        batch = client.batches.create(
            input_file_id=source,
            endpoint=endpoint or "/v1/chat/completions",  # type: ignore[arg-type]  # the server knows its endpoints
            completion_window=window,  # type: ignore[arg-type]  # the official type allows "24h" alone
            metadata=pairs,
            extra_body={
                "priority": priority.value,
                "invalid_lines": invalid_lines.value,
                "uncovered_lines": uncovered_lines.value,
            },
        )
        print(batch.to_json() if as_json else batch.id, flush=True)
        if watch:
            _follow(client, batch.id, fail_on_errors=fail_on_errors)


@app.command()
def check(
    path: Annotated[Path, typer.Argument(metavar="IN.jsonl|IN.jsonl.gz")],
    *,
    endpoint: Annotated[str | None, typer.Option(help="[default: the url of the file's first line]")] = None,
    model: Annotated[str | None, typer.Option(help="The name that every line must give [default: any one]")] = None,
) -> None:
    """Check an input file as the server will, without one: every bad line is listed, and exit status 2 says so."""
    from cli.disk.input_check import AnyModel, check_file

    endpoint = endpoint or _first_url(path) or "/v1/chat/completions"
    scan = check_file(path, endpoint=endpoint, models=AnyModel() if model is None else {model})
    tokens = sum(chunk.estimated_tokens for chunk in scan.planner.finish())
    print(f"{path} is valid: {scan.num_requests:,} lines for {endpoint} of {scan.model}, about {tokens:,} tokens")


@app.command("list")
def list_(limit: Annotated[int, typer.Option(min=1, help="The newest ones.")] = 20, as_json: AsJson = False) -> None:
    """List the newest batches."""
    from itertools import islice

    from cli.batch_table import print_batches
    from cli.client import client_from_environment, server_errors_as_sentences

    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        batches = list(islice(client.batches.list(limit=min(limit, 100)), limit))
    if as_json:
        print(json.dumps([batch.to_dict() for batch in batches], indent=2))
        return
    print_batches(batches)


@app.command()
def show(batch_id: BatchId, as_json: AsJson = False) -> None:
    """Show one batch."""
    from cli.batch_fields import batch_fields
    from cli.client import client_from_environment, server_errors_as_sentences
    from cli.table import print_fields
    from cli.watch import describe_errors

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
def watch(batch_id: BatchId, fail_on_errors: FailOnErrors = False) -> None:
    """Follow a batch until it ends; exit status 1 if it does not complete or every line fails."""
    from cli.client import client_from_environment, server_errors_as_sentences

    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        _follow(client, batch_id, fail_on_errors=fail_on_errors)


@app.command()
def cancel(batch_id: BatchId) -> None:
    """Cancel a batch; finished lines are kept."""
    from cli.client import client_from_environment, server_errors_as_sentences

    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        print(client.batches.cancel(batch_id).status)


@app.command()
def change(
    batch_id: BatchId,
    *,
    priority: Annotated[AskedPriority | None, typer.Option(help="The new class.")] = None,
    window: Annotated[str | None, typer.Option(help="Time to finish in, from the batch's creation on.")] = None,
) -> None:
    """Change the class or the window of a batch that has not ended."""
    from openai.types import Batch

    from cli.client import client_from_environment, server_errors_as_sentences
    from cli.table import when

    wanted = {"priority": priority and priority.value, "completion_window": window}
    body = {name: value for name, value in wanted.items() if value is not None}
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        batch = client.post(f"/batches/{batch_id}", cast_to=Batch, body=body)
    extra = batch.model_extra or {}
    print(f"class {extra.get('priority')}, to end by {when(batch.expires_at or 0)}")


@app.command()
def decisions(batch_id: BatchId, as_json: AsJson = False) -> None:
    """Show what was decided about a batch within the last day, and by whom."""
    from cli.client import client_from_environment, server_errors_as_sentences
    from cli.table import print_table, when

    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        found = client.get(f"/batches/{batch_id}/decisions", cast_to=dict[str, Any])["data"]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print_table(("last", "what"), [(when(one["last_at"]), one["message"]) for one in found])


@app.command()
def retry(
    batch_id: BatchId,
    window: Annotated[str | None, typer.Option(help="[default: that of the batch]")] = None,
    as_json: AsJson = False,
) -> None:
    """Submit the failed lines of a batch again, as a batch of their own; print its id."""
    from openai.types import Batch

    from cli.client import client_from_environment, server_errors_as_sentences

    body = {} if window is None else {"completion_window": window}
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        batch = client.post(f"/batches/{batch_id}/retry", cast_to=Batch, body=body)
    print(batch.to_json() if as_json else batch.id)


@app.command()
def results(
    batch_id: BatchId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Replaced when complete [default: standard output]")
    ] = None,
    fail_on_errors: FailOnErrors = False,
) -> None:
    """Write the finished lines, failed ones included; those so far while the batch still runs."""
    from cli.client import client_from_environment, server_errors_as_sentences
    from cli.disk.download import replacing
    from cli.disk.output_path import require_writable
    from cli.line_tally import SOME_LINES_FAILED, LineTally

    if output is not None:
        require_writable(output)
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        tally = LineTally()
        pages = tally.passing(_pages(client, batch_id))
        if output is None:
            sys.stdout.buffer.writelines(pages)
            sys.stdout.buffer.flush()
        else:
            with replacing(output) as file:
                file.writelines(pages)
    _report(tally, output)
    if tally.num_failed and fail_on_errors:
        raise typer.Exit(SOME_LINES_FAILED)


def _report(tally: LineTally, output: Path | None) -> None:
    """Say on standard error what the lines are that were written; good ones on standard output need no words."""
    from cli.line_tally import by_code, truncated

    if output is not None:
        print(f"{tally.num_completed:,} done, {tally.num_failed:,} failed, written to {output}", file=sys.stderr)
    if tally.codes:
        print(f"  failed lines: {by_code(tally.codes)}", file=sys.stderr)
    if cut := truncated(tally.num_truncated):
        print(f"  {cut}", file=sys.stderr)


def _print_estimate(client: OpenAI, call: dict[str, Any], *, as_json: bool) -> None:
    """Ask what a create call would take, and print it."""
    from cli.batch_fields import estimate_fields
    from cli.table import print_fields

    found = client.post("/estimates", cast_to=dict[str, Any], body=call)
    if call.get("exact"):
        found = _when_counted(client, found)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print_fields(estimate_fields(found))
    for error in (found["errors"] or {"data": []})["data"]:
        print(f"line {error['line']}: {error['message']}")


def _when_counted(client: OpenAI, found: dict[str, Any]) -> dict[str, Any]:
    """Wait until a worker has counted an input, and say on standard error how far it is."""
    seen = None
    while found["status"] == "counting":
        counted = f"counted {found['counted_lines']:,} of {found['requests']:,} lines"
        if counted != seen:
            print(f"{counted} ({found['basis']})" if seen is None else counted, file=sys.stderr, flush=True)
        seen = counted
        time.sleep(_LOOK_SECONDS)
        found = client.get(f"/estimates/{found['id']}", cast_to=dict[str, Any])
    if found["status"] != "counted":
        raise ServiceError(f"the lines could not be counted: {found['tokens_basis']}")
    return found


def _pages(client: OpenAI, batch_id: str) -> Iterator[bytes]:
    """Yield the lines in the order they finished, a page at a time, at least one."""
    import httpx

    after: str | None = None
    while True:
        query = {"limit": _PAGE} if after is None else {"limit": _PAGE, "after": after}
        answer = client.get(f"/batches/{batch_id}/results", cast_to=httpx.Response, options={"params": query})
        yield answer.content
        if answer.headers.get("x-has-more") != "true":
            return
        after = answer.headers["x-next-after"]


def _follow(client: OpenAI, batch_id: str, *, fail_on_errors: bool) -> None:
    from cli.watch import describe_end, error_codes, exit_status, watch_batch

    try:
        batch = watch_batch(client, batch_id)
    except KeyboardInterrupt:
        print(f"{batch_id} goes on. Watch it again: tokenmill batch watch {batch_id}", file=sys.stderr)
        print(f"Cancel it: tokenmill batch cancel {batch_id}", file=sys.stderr)
        raise typer.Exit(130) from None
    print(describe_end(batch, codes=error_codes(client, batch)))
    if status := exit_status(batch, fail_on_errors=fail_on_errors):
        raise typer.Exit(status)


def _pairs(given: list[str]) -> dict[str, str] | None:
    for pair in given:
        if "=" not in pair:
            raise InputError(f"--metadata is {pair!r}. Give it as KEY=VALUE.")
    return dict(pair.split("=", 1) for pair in given) or None


def _first_url(path: Path) -> str | None:
    """Return the url of the first line that has one; the server judges all of them."""
    import orjson

    from cli.disk.input_file import opened

    with opened(path, give="a JSONL file or a file id") as file:
        if not file.seekable():
            raise InputError(f"{path} can be read only once; give --endpoint, which its first line would have told")
        for raw in file:
            try:
                url = orjson.loads(raw.removeprefix(b"\xef\xbb\xbf")).get("url")
            except (ValueError, AttributeError):
                continue
            if isinstance(url, str):
                return url
    return None
