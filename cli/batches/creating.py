"""`tokenmill batch create` and `check`: what is submitted, what it would take, and whether a file is valid."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from cli.batches.fields import estimate_fields
from cli.batches.following import follow
from cli.client import client_from_environment, server_errors_as_sentences
from cli.disk.input_check import AnyModel, check_file
from cli.disk.input_file import opened, sha256_of
from cli.file_commands import upload_file
from cli.line_tally import SOME_LINES_FAILED
from cli.options import AsJson, FailOnErrors, IdempotencyKey, WaitForServer, duration
from cli.table import print_fields
from jobs.counted import counted
from jobs.errors import InputError, ServiceError
from jobs.states import AskedPriority, InvalidLines, UncoveredLines

if TYPE_CHECKING:
    from openai import OpenAI


_LOOK_SECONDS = 1.0
_VERDICTS = ("accepted", "skips_lines", "fails", "refused")
"""The worse the later."""
_STATUSES = {"accepted": 0, "skips_lines": SOME_LINES_FAILED, "fails": 2, "refused": 2}
"""Of a dry run, by what would become of the batch."""
_NO_REQUESTS = "{} holds no requests. Give one JSON object per line."
_IN_WORDS = {
    "skips_lines": "lines would be skipped",
    "fails": "the batch would fail",
    "refused": "the batch would be refused",
}


def create(
    source: Annotated[str, typer.Argument(metavar="IN.jsonl|FILE_ID", help="A local file is uploaded first.")],
    *,
    endpoint: Annotated[str | None, typer.Option(help="[default: the url of the file's first line]")] = None,
    window: Annotated[str, typer.Option(help="Time to finish in, such as 30m, 24h or 7d.")] = "24h",
    priority: Annotated[AskedPriority, typer.Option()] = AskedPriority.NORMAL,
    invalid_lines: Annotated[
        InvalidLines, typer.Option(help="fail: they fail the batch; skip: they fail alone.")
    ] = InvalidLines.FAIL,
    uncovered_lines: Annotated[
        UncoveredLines, typer.Option(help="What lines do that the token budget does not cover.")
    ] = UncoveredLines.WAIT,
    metadata: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="May be given again.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "--wait", help="Follow the batch until it ends.")] = False,
    wait_for_server: WaitForServer = None,
    fail_on_errors: FailOnErrors = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would take, and submit nothing.")] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --dry-run: wait until a worker has counted every token.")
    ] = False,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Submit a batch and print its id.

    A file without requests is refused. With --wait, exit status 1 if it does not complete or every line fails. With
    --dry-run, exit status 2 where it would be refused or fail, and 3 where lines would be skipped.
    """
    pairs = _pairs(metadata or [])
    if exact and not dry_run:
        raise InputError("--exact is for --dry-run. Give both, or none of them.")
    if idempotency_key is not None and dry_run:
        raise InputError("--idempotency-key is for a batch that is submitted. Leave it out with --dry-run.")
    if wait_for_server is not None:
        if not watch:
            raise InputError("--wait-for-server is for --wait. Give both, or none of them.")
        duration(wait_for_server, option="--wait-for-server")  # refused before a batch is made
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        path, is_uploaded = Path(source), False
        if path.exists() or not source.startswith("file"):
            endpoint = endpoint or _first_url(path)
            if not dry_run:
                _require_requests(path)
            source = upload_file(client, path, purpose="batch").id
            is_uploaded = True
        elif not dry_run and _is_empty(client, source):
            raise InputError(_NO_REQUESTS.format(source))
        if dry_run:
            call: dict[str, Any] = {
                "input_file_id": source, "completion_window": window, "priority": priority.value,
                "invalid_lines": invalid_lines.value, "uncovered_lines": uncovered_lines.value, "metadata": pairs,
            } | ({"exact": True} if exact else {})  # fmt: skip
            try:
                found = estimate(client, call | ({"endpoint": endpoint} if endpoint else {}))
            finally:
                if is_uploaded:
                    client.files.delete(source)
            _show_estimate(found, as_json=as_json)
            return
        keyed = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        batch = client.batches.create(
            input_file_id=source,
            endpoint=endpoint or "/v1/chat/completions",  # type: ignore[arg-type]  # the server knows its endpoints
            completion_window=window,  # type: ignore[arg-type]  # the official type allows "24h" alone
            metadata=pairs,
            extra_body={
                "priority": priority.value,
                "invalid_lines": invalid_lines.value,
                "uncovered_lines": uncovered_lines.value,
                **({"input_sha256": sha256_of(path)} if keyed and is_uploaded else {}),
            },
            extra_headers=keyed,
        )
        if is_uploaded and batch.input_file_id != source:
            client.files.delete(source)  # an earlier call made the batch, of the same content
        print(batch.to_json() if as_json else batch.id, flush=True)
        if watch:
            follow(client, batch.id, fail_on_errors=fail_on_errors, wait_for_server=wait_for_server)


def _require_requests(path: Path) -> None:
    """Raise InputError of a file whose batch could only fail; one that can be read only once the server judges."""
    if path.is_file():
        with opened(path, give="a JSONL file or a file id") as file:
            if not any(line.strip() for line in file):
                raise InputError(_NO_REQUESTS.format(path))


def _is_empty(client: OpenAI, file_id: str) -> bool:
    """Tell whether a file has no byte; one that is gone may be the input of an earlier call with the same key."""
    from openai import NotFoundError

    try:
        return client.files.retrieve(file_id).bytes == 0
    except NotFoundError:
        return False


def check(
    path: Annotated[Path, typer.Argument(metavar="IN.jsonl|IN.jsonl.gz")],
    *,
    endpoint: Annotated[str | None, typer.Option(help="[default: the url of the file's first line]")] = None,
    model: Annotated[str | None, typer.Option(help="The name that every line must give [default: any one]")] = None,
) -> None:
    """Check an input file as the server will, without one: every bad line is listed, and exit status 2 says so."""
    endpoint = endpoint or _first_url(path) or "/v1/chat/completions"
    scan = check_file(path, endpoint=endpoint, models=AnyModel() if model is None else {model})
    tokens = counted(sum(chunk.estimated_tokens for chunk in scan.planner.finish()), "token")
    print(f"{path} is valid: {counted(scan.num_requests, 'line')} for {endpoint} of {scan.model}, about {tokens}")


def estimate(client: OpenAI, call: Mapping[str, Any], *, quiet_seconds: float = 0.0) -> dict[str, Any]:
    """Ask what a create call would take, and wait until that is counted where it is to be exact.

    A wait of more than `quiet_seconds` is said on standard error.
    """
    first = client.post("/estimates", cast_to=dict[str, Any], body=call)
    if not call.get("exact"):
        return first
    found = _when_counted(client, first, quiet_seconds=quiet_seconds)
    worse = max(found, first, key=lambda one: _VERDICTS.index(one["verdict"]))
    return found | {"verdict": worse["verdict"], "reason": worse["reason"]}


def _show_estimate(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what a batch would take, and exit with the status of what would become of it."""
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_fields(estimate_fields(found))
        for error in (found["errors"] or {"data": []})["data"]:
            print(f"line {error['line']}: {error['message']}")
    if status := _STATUSES[found["verdict"]]:
        print(f"tokenmill: {_IN_WORDS[found['verdict']]}: {found['reason']}", file=sys.stderr)
        raise typer.Exit(status)


def _when_counted(client: OpenAI, found: dict[str, Any], *, quiet_seconds: float) -> dict[str, Any]:
    """Wait until a worker has counted an input, and say on standard error how far it is."""
    seen, waited = None, 0.0
    while found["status"] == "counting":
        standing = f"counted {found['counted_lines']:,} of {counted(found['requests'], 'line')}"
        if standing != seen and waited >= quiet_seconds:
            print(f"{standing} ({found['basis']})" if seen is None else standing, file=sys.stderr, flush=True)
            seen = standing
        time.sleep(_LOOK_SECONDS)
        waited += _LOOK_SECONDS
        found = client.get(f"/estimates/{found['id']}", cast_to=dict[str, Any])
    if found["status"] != "counted":
        raise ServiceError(f"the lines could not be counted: {found['tokens_basis']}")
    return found


def _pairs(given: list[str]) -> dict[str, str] | None:
    for pair in given:
        if "=" not in pair:
            raise InputError(f"--metadata is {pair!r}. Give it as KEY=VALUE.")
    return dict(pair.split("=", 1) for pair in given) or None


def _first_url(path: Path) -> str | None:
    """Return the url of the first line that has one; the server judges all of them."""
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
