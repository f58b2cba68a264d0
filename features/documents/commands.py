"""`tokenmill extractions …`: extractions on a running server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.calls import named, server
from cli.disk.download import replacing
from cli.disk.output_path import require_apart, require_replaceable
from cli.extracting.records import record_pages
from cli.ids import require_id
from cli.options import AsJson, Newest, OfCollection
from cli.stages import Listing, stage_reached
from cli.table import when
from jobs.errors import InputError

app = typer.Typer(help="Extractions on a server: fields from collections of documents.", no_args_is_help=True)

ExtractionId = Annotated[str, typer.Argument(metavar="EXTRACTION_ID", callback=require_id)]

_COLUMNS = ("id", "created", "status", "stage", "documents", "failed", "to review", "reason")


@app.command("list")
def list_newest(collection: OfCollection = None, limit: Newest = 20, as_json: AsJson = False) -> None:
    """List the newest extractions, with their stages and the reason where one failed."""
    listing = Listing(path="/extractions", columns=_COLUMNS, numbers=("documents", "failed", "to review"), row=_row)
    listing.print(collection=collection, limit=limit, as_json=as_json)


@app.command()
def show(extraction_id: ExtractionId) -> None:
    """Print an extraction as JSON: its stages, batches and files."""
    with server() as calls:
        print(json.dumps(calls.get(named("extractions", extraction_id)), indent=2))


@app.command()
def results(
    extraction_id: ExtractionId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT.jsonl", help="[default: standard output]")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="OUT.parquet", help="Also write the fields as a table.")
    ] = None,
) -> None:
    """Write the records of an extraction, one per document, with the corrections of reviewers.

    Before the extraction ends records may still change; a message says so.
    """
    if output is None:
        if parquet is not None:
            raise InputError("--parquet needs --output. Give -o, the file for the records.")
        with server() as calls:
            for page in record_pages(calls, extraction_id):
                sys.stdout.write(page.decode())
        return
    require_replaceable(output)
    if parquet is None:
        with server() as calls, replacing(output) as file:
            file.writelines(record_pages(calls, extraction_id))
        return
    require_replaceable(parquet)
    require_apart([parquet], {output: "the file of the records"})
    _write_both(extraction_id, output, parquet)


@app.command()
def cancel(extraction_id: ExtractionId) -> None:
    """Cancel an extraction and the batch that it waits for."""
    with server() as calls:
        print(calls.post(named("extractions", extraction_id, "/cancel"))["status"])


def _row(extraction: dict[str, Any]) -> tuple[object, ...]:

    counts = extraction["document_counts"]
    return (
        extraction["id"],
        when(extraction["created_at"]),
        extraction["status"],
        stage_reached(extraction),
        counts["total"],
        counts["failed"],
        extraction["num_to_review"],
        extraction["reason"],
    )


def _write_both(extraction_id: str, output: Path, parquet: Path) -> None:
    from cli.extracting.outputs import Outputs, write_outputs
    from features.documents.extraction.fields.schema import FieldSchema

    with server() as calls:
        schema = FieldSchema.parse(calls.get(named("extractions", extraction_id))["schema"])
        records = (json.loads(line) for page in record_pages(calls, extraction_id) for line in page.splitlines())
        write_outputs(records, Outputs(records=output, table=parquet), schema=schema)
