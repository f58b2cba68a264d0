"""`tokenmill batch create` and `check`: submit a batch, estimate it, and validate a file."""

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
from cli.disk.standard_input import from_stdin
from cli.file_commands import upload_file
from cli.line_tally import SOME_LINES_FAILED
from cli.options import AsJson, FailOnErrors, IdempotencyKey, WaitForServer, duration
from cli.table import print_fields
from jobs.counted import counted
from jobs.errors import InputError, ServiceError
from jobs.states import AskedPriority, EngineChoice, InvalidLines, UncoveredLines

if TYPE_CHECKING:
    from openai import OpenAI


_POLL_SECONDS = 1.0
_VERDICTS = ("accepted", "skips_lines", "fails", "refused")
"""From best to worst."""
_STATUSES = {"accepted": 0, "skips_lines": SOME_LINES_FAILED, "fails": 2, "refused": 2}
"""Exit statuses of a dry run, by verdict."""
_NO_REQUESTS = "{} contains no requests. Give one JSON object per line."
_IN_WORDS = {
    "skips_lines": "lines would be skipped",
    "fails": "the batch would fail",
    "refused": "the batch would be refused",
}


def create(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN.jsonl|FILE_ID", callback=from_stdin, help="A local file is uploaded first; - is standard input."
        ),
    ],
    *,
    endpoint: Annotated[str | None, typer.Option(help="[default: the url of the file's first line]")] = None,
    name: Annotated[str | None, typer.Option(help="What lists show [default: the file's name]")] = None,
    window: Annotated[str, typer.Option(help="Time to complete in, such as 30m, 24h or 7d.")] = "24h",
    priority: Annotated[AskedPriority, typer.Option()] = AskedPriority.NORMAL,
    invalid_lines: Annotated[
        InvalidLines, typer.Option(help="fail: the batch fails; skip: only these lines fail.")
    ] = InvalidLines.FAIL,
    uncovered_lines: Annotated[
        UncoveredLines, typer.Option(help="What happens to lines beyond the token budget.")
    ] = UncoveredLines.WAIT,
    engine: Annotated[
        EngineChoice, typer.Option(help="same: one kind of engine gives all answers; any: each line may have another.")
    ] = EngineChoice.SAME,
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Run only where a line always has the same bits: on our own engine.")
    ] = False,
    metadata: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="May be given again.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "--wait", help="Follow the batch until it ends.")] = False,
    wait_for_server: WaitForServer = None,
    fail_on_errors: FailOnErrors = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print an estimate and submit nothing.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="With --dry-run: let a worker count every token.")] = False,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Submit a batch and print its id.

    A file without requests is refused. With --wait, exit status 1 if it does not complete or every line fails. With
    --dry-run, exit status 2 if it would be refused or fail, and 3 if lines would be skipped.
    """
    pairs = _pairs(metadata or [])
    if exact and not dry_run:
        raise InputError("--exact needs --dry-run. Give both, or neither.")
    if idempotency_key is not None and dry_run:
        raise InputError("--idempotency-key has no use with --dry-run, which submits nothing. Leave one of them out.")
    if wait_for_server is not None:
        if not watch:
            raise InputError("--wait-for-server needs --wait. Give both, or neither.")
        duration(wait_for_server, option="--wait-for-server")  # refused before a batch is created
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
                result = estimate(client, call | ({"endpoint": endpoint} if endpoint else {}))
            finally:
                if is_uploaded:
                    client.files.delete(source)
            _show_estimate(result, as_json=as_json)
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
                **({"name": name} if name is not None else {}),
                **({} if engine is EngineChoice.SAME else {"engine": engine.value}),
                **({"reproducible": True} if reproducible else {}),
                **({"input_sha256": sha256_of(path)} if keyed and is_uploaded else {}),
            },
            extra_headers=keyed,
        )
        if is_uploaded and batch.input_file_id != source:
            client.files.delete(source)  # an earlier call created the batch, with the same content
        print(batch.to_json() if as_json else batch.id, flush=True)
        if watch:
            follow(client, batch.id, fail_on_errors=fail_on_errors, wait_for_server=wait_for_server)


def _require_requests(path: Path) -> None:
    """Raise InputError for a file without requests; a pipe, which can be read only once, is left to the server."""
    if path.is_file():
        with opened(path, give="a JSONL file or a file id") as file:
            if not any(line.strip() for line in file):
                raise InputError(_NO_REQUESTS.format(path))


def _is_empty(client: OpenAI, file_id: str) -> bool:
    """Return whether a file is empty; a deleted one may be the input of an earlier call with the same key."""
    from openai import NotFoundError

    try:
        return client.files.retrieve(file_id).bytes == 0
    except NotFoundError:
        return False


def check(
    path: Annotated[
        Path, typer.Argument(metavar="IN.jsonl|IN.jsonl.gz", callback=from_stdin, help="- for standard input.")
    ],
    *,
    endpoint: Annotated[str | None, typer.Option(help="[default: the url of the file's first line]")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model that every line must name [default: any one model]")
    ] = None,
) -> None:
    """Validate an input file as the server does, without a server; list bad lines and exit with status 2."""
    endpoint = endpoint or _first_url(path) or "/v1/chat/completions"
    scan = check_file(path, endpoint=endpoint, models=AnyModel() if model is None else {model})
    tokens = counted(sum(chunk.estimated_tokens for chunk in scan.planner.finish()), "token")
    print(f"{path} is valid: {counted(scan.num_requests, 'line')} for {endpoint} of {scan.model}, about {tokens}")


def estimate(client: OpenAI, call: Mapping[str, Any], *, quiet_seconds: float = 0.0) -> dict[str, Any]:
    """Return the estimate of a create call; an exact one is waited for.

    After `quiet_seconds` of waiting, progress is printed to standard error.
    """
    first = client.post("/estimates", cast_to=dict[str, Any], body=call)
    if not call.get("exact"):
        return first
    exact = _when_counted(client, first, quiet_seconds=quiet_seconds)
    worse = max(exact, first, key=lambda one: _VERDICTS.index(one["verdict"]))
    return exact | {"verdict": worse["verdict"], "reason": worse["reason"]}


def _show_estimate(result: Mapping[str, Any], *, as_json: bool) -> None:
    """Print an estimate, and exit with the status of its verdict."""
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        print_fields(estimate_fields(result))
        for error in (result["errors"] or {"data": []})["data"]:
            print(f"line {error['line']}: {error['message']}")
    if status := _STATUSES[result["verdict"]]:
        print(f"tokenmill: {_IN_WORDS[result['verdict']]}: {result['reason']}", file=sys.stderr)
        raise typer.Exit(status)


def _when_counted(client: OpenAI, result: dict[str, Any], *, quiet_seconds: float) -> dict[str, Any]:
    """Wait until a worker has counted an input; print progress to standard error."""
    printed, waited = None, 0.0
    while result["status"] == "counting":
        progress = f"counted {result['counted_lines']:,} of {counted(result['requests'], 'line')}"
        if progress != printed and waited >= quiet_seconds:
            print(f"{progress} ({result['basis']})" if printed is None else progress, file=sys.stderr, flush=True)
            printed = progress
        time.sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS
        result = client.get(f"/estimates/{result['id']}", cast_to=dict[str, Any])
    if result["status"] != "counted":
        raise ServiceError(f"the lines could not be counted: {result['tokens_basis']}")
    return result


def _pairs(options: list[str]) -> dict[str, str] | None:
    for pair in options:
        if "=" not in pair:
            raise InputError(f"--metadata is {pair!r}. Give it as KEY=VALUE.")
    return dict(pair.split("=", 1) for pair in options) or None


def _first_url(path: Path) -> str | None:
    """Return the url of the first line that has one; the server checks all lines."""
    with opened(path, give="a JSONL file or a file id") as file:
        if not file.seekable():
            raise InputError(
                f"{path} can be read only once; give --endpoint, which is otherwise taken from the first line"
            )
        for raw in file:
            try:
                url = orjson.loads(raw.removeprefix(b"\xef\xbb\xbf")).get("url")
            except (ValueError, AttributeError):
                continue
            if isinstance(url, str):
                return url
    return None
