"""`tokenmill extract --index INDEX_ID --schema S -o fields.jsonl`: a server asks one of its indexes for fields."""

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
from cli.ids import given
from cli.places.options import Window, say, text_of
from cli.places.place import place_of
from cli.stages import until_ended
from features.documents.commands import pages
from jobs.errors import InputError

if TYPE_CHECKING:
    from cli.calls import Calls
    from cli.extracting.outputs import Outputs
    from cli.extracting.running import Tally

_ENDED_WITHOUT = ("failed", "cancelled")
_MAX_TRIES = 100
"""Extractions with the same questions that failed or were cancelled, and that the server still knows."""


def extract_of_index(
    documents: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    *,
    index: Annotated[str, typer.Option(metavar="INDEX_ID", callback=given, help="Of the server.")],
    schema: Annotated[Path, typer.Option(metavar="S.json", help="JSON schema of the fields.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="The record of the index.")],
    parquet: Annotated[Path | None, typer.Option(metavar="OUT.parquet", help="The fields as a table, too.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="C.json", help="Of `tokenmill extract calibrate`: what scores mean.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="One that the server serves.  [default: its only one]")] = None,
    base_url: Annotated[str | None, typer.Option(help="The server's  [default: $TOKENMILL_BASE_URL]")] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, max=100, help="Passages that a field is shown, at most.  [default: 5]")
    ] = None,
    quotes: Annotated[
        bool, typer.Option(help="Ask for the words that hold each value; else the value itself is looked for.")
    ] = True,
    logprobs: Annotated[bool, typer.Option(help="Ask how likely each token is: better scores.")] = True,
    again: Annotated[bool, typer.Option(help="Ask for doubtful fields a second time.")] = True,
    max_tokens: Annotated[
        int | None, typer.Option(min=16, help="The longest answer [default: twice what the schema lets expect]")
    ] = None,
    max_fields: Annotated[int, typer.Option(min=1, help="Of an object or a list that are asked at once.")] = 25,
    window: Window = "24h",
    fail_on_errors: Annotated[bool, typer.Option("--fail-on-errors", help="Exit with status 3 if it failed.")] = False,
) -> None:
    """Find the fields of a schema in an index of a server, as if all its documents were one.

    For each field of the schema the passages that its name and description lead to are found and shown to the model;
    each value comes with its document and its place there. Interrupted, the server goes on, and the same command comes
    back to it.
    """
    from cli.extracting.outputs import Outputs
    from cli.extracting.screen import end
    from features.documents.plans import plan
    from features.documents.record_table import require_table

    if documents:
        raise InputError(f"both documents ({documents[0]!r}) and --index are given. Ask the one or the other.")
    outputs = Outputs(records=output, table=parquet)
    files = {name: path for name, path in (("schema", schema), ("calibration", calibration)) if path is not None}
    for path in outputs.paths:
        require_replaceable(path)
    require_apart(outputs.paths, {path: f"the {name}" for name, path in files.items()})
    wishes = {"quotes": quotes, "logprobs": logprobs, "again": again, "max_tokens": max_tokens, "top_k": top_k}
    asked = {"index_id": index, **wishes, "max_fields": max_fields, "completion_window": window}
    read = {name: _json_of(path) for name, path in files.items()}
    if parquet is not None:
        require_table(plan(text_of(schema).encode(), quotes=quotes, params={}, max_fields=max_fields).schema)
    _require_server(base_url)
    place = place_of(model, base_url=base_url, window=window)
    with server() as calls:
        tally = _ask(calls, {**asked, **read, "model": place.model}, outputs)
    end(tally, fail_on_errors=fail_on_errors)


def _ask(calls: Calls, body: Mapping[str, Any], outputs: Outputs) -> Tally:
    """Have the server ask, or go on where an earlier call was, and write the record. Raises InputError."""
    from cli.extracting.outputs import write_outputs
    from cli.extracting.running import Tally
    from cli.extracting.screen import noting, print_examples
    from features.documents.extraction.fields.schema import FieldSchema

    extraction = _begun(calls, body)
    say(f"extraction {extraction['id']}: should this command end, it goes on, and the same command comes back to it")
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
    """Return the extraction of these questions that is under way or completed; a new one where there is none."""
    for number in range(_MAX_TRIES):
        asked = json.dumps([body, number]).encode()  # the order of a schema's fields counts
        made = calls.post("/extractions", body, key=hashlib.sha256(asked).hexdigest())
        if made["status"] not in _ENDED_WITHOUT:
            return made
    raise InputError(
        f"these questions have failed {_MAX_TRIES} times; `tokenmill extractions list` says why. Delete some of those."
    )


def _records(extraction_id: str) -> Iterator[dict[str, Any]]:

    for page in pages(extraction_id):
        yield from map(json.loads, page.splitlines())


def _require_server(base_url: str | None) -> None:
    if base_url is None and not os.environ.get("TOKENMILL_BASE_URL"):
        raise InputError(
            "--index is of a server, and none is named. Set TOKENMILL_BASE_URL and TOKENMILL_API_KEY, or give "
            "--base-url; without a server documents are asked: `tokenmill extract DOCS`."
        )


def _json_of(path: Path) -> Any:

    try:
        return json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}, column {error.colno}: it is no JSON ({error.msg}).") from None
