"""`tokenmill extract index INDEX_ID --schema S -o fields.jsonl`: fields from an index of a server."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.calls import named, server
from cli.disk.output_path import require_apart, require_replaceable
from cli.ids import require_id
from cli.places.place import place_of
from cli.service.options import Window, say, text_of
from cli.stages import until_ended
from features.documents.commands import pages
from jobs.errors import InputError

if TYPE_CHECKING:
    from cli.calls import Calls
    from cli.extracting.outputs import Outputs
    from cli.extracting.running import Tally

_ENDED_WITHOUT = ("failed", "cancelled")
_MAX_TRIES = 100
"""Most earlier extractions with the same questions that failed or were cancelled."""


def index(
    index_id: Annotated[str, typer.Argument(metavar="INDEX_ID", callback=require_id, help="Index on the server.")],
    *,
    schema: Annotated[Path, typer.Option(metavar="S.json", help="JSON schema of the fields.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="File for the record.")],
    parquet: Annotated[
        Path | None, typer.Option(metavar="OUT.parquet", help="Also write the fields as a table.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="C.json", help="Calibration of scores, from `tokenmill extract calibrate`.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model on the server.  [default: its only model]")] = None,
    base_url: Annotated[str | None, typer.Option(help="URL of the server  [default: $TOKENMILL_BASE_URL]")] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, max=100, help="Most passages in a field's prompt.  [default: 5]")
    ] = None,
    quotes: Annotated[
        bool, typer.Option(help="Ask for a quote with each value; otherwise the value itself is searched.")
    ] = True,
    logprobs: Annotated[bool, typer.Option(help="Ask for token probabilities: better scores.")] = True,
    again: Annotated[bool, typer.Option(help="Ask for doubtful fields again.")] = True,
    max_tokens: Annotated[
        int | None, typer.Option(min=16, help="Longest answer [default: twice the length expected from the schema]")
    ] = None,
    max_fields: Annotated[int, typer.Option(min=1, help="Most fields of an object or list per prompt.")] = 25,
    window: Window = "24h",
    fail_on_errors: Annotated[bool, typer.Option("--fail-on-errors", help="Exit with status 3 if it failed.")] = False,
) -> None:
    """Extract the fields of a schema from an index of a server.

    All its documents are asked as if they were one. For each field, passages that match its name and description are
    shown to the model; each value has its document and its place there. After an interruption the server continues, and
    the same command waits for it again.
    """
    from cli.extracting.outputs import Outputs
    from cli.extracting.screen import end
    from features.documents.plans import plan
    from features.documents.record_table import require_table

    outputs = Outputs(records=output, table=parquet)
    files = {name: path for name, path in (("schema", schema), ("calibration", calibration)) if path is not None}
    for path in outputs.paths:
        require_replaceable(path)
    require_apart(outputs.paths, {path: f"the {name}" for name, path in files.items()})
    options = {"quotes": quotes, "logprobs": logprobs, "again": again, "max_tokens": max_tokens, "top_k": top_k}
    body = {"index_id": index_id, **options, "max_fields": max_fields, "completion_window": window}
    contents = {name: _json_of(path) for name, path in files.items()}
    if parquet is not None:
        require_table(plan(text_of(schema).encode(), quotes=quotes, params={}, max_fields=max_fields).schema)
    _require_server(base_url)
    place = place_of(model, base_url=base_url, window=window)
    with server() as calls:
        tally = _ask(calls, {**body, **contents, "model": place.model}, outputs)
    end(tally, fail_on_errors=fail_on_errors)


def _ask(calls: Calls, body: Mapping[str, Any], outputs: Outputs) -> Tally:
    """Start the extraction, or resume that of an earlier call, and write the record. Raises InputError."""
    from cli.extracting.outputs import write_outputs
    from cli.extracting.running import Tally
    from cli.extracting.screen import noting, print_examples
    from features.documents.extraction.fields.schema import FieldSchema

    extraction = _begun(calls, body)
    say(f"extraction {extraction['id']}: it continues if this command ends; the same command waits for it again")
    ended = until_ended(calls, named("extractions", extraction["id"]))
    if ended["status"] in _ENDED_WITHOUT:
        raise InputError(f"extraction {ended['id']} is {ended['status']}: {ended['reason']}")
    tally = Tally()
    shown: list[dict[str, Any]] = []
    records = noting(tally.passing(_records(ended["id"])), shown)
    write_outputs(records, outputs, schema=FieldSchema.parse(ended["schema"]))
    print_examples(shown)
    say(f"written to {' and '.join(map(str, outputs.paths))}")
    return tally


def _begun(calls: Calls, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the open or completed extraction with these questions; create it if there is none."""
    for number in range(_MAX_TRIES):
        identity = json.dumps([body, number]).encode()  # the order of a schema's fields matters
        extraction = calls.post("/extractions", body, key=hashlib.sha256(identity).hexdigest())
        if extraction["status"] not in _ENDED_WITHOUT:
            return extraction
    raise InputError(
        f"extractions with these questions have failed {_MAX_TRIES} times; `tokenmill extractions list` shows why. "
        "Delete some of them."
    )


def _records(extraction_id: str) -> Iterator[dict[str, Any]]:
    for page in pages(extraction_id):
        yield from map(json.loads, page.splitlines())


def _require_server(base_url: str | None) -> None:
    if base_url is None and not os.environ.get("TOKENMILL_BASE_URL"):
        raise InputError(
            "an index needs a server. Set TOKENMILL_BASE_URL and TOKENMILL_API_KEY, or give --base-url; without a "
            "server, extract from documents: `tokenmill extract DOCS`."
        )


def _json_of(path: Path) -> Any:

    try:
        return json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}, column {error.colno}: it is not JSON ({error.msg}).") from None
