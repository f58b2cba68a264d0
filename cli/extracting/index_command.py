"""`tokenmill extract index INDEX_ID --schema S -o fields.jsonl`: fields from an index of a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.data_dir import default_data_dir
from cli.disk.output_path import require_apart, require_replaceable
from cli.extracting.options import Keep
from cli.ids import require_id
from cli.service.choosing import is_remote, target_of
from cli.service.options import BaseUrl, RunDataDir, Window, text_of
from cli.service.running import find_running
from jobs.errors import InputError


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
    base_url: BaseUrl = None,
    data_dir: RunDataDir = None,
    keep: Keep = False,
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
    from cli.extracting.carrying_out import carry_out
    from cli.extracting.order import Order, folder_of
    from cli.extracting.outputs import Outputs
    from cli.extracting.screen import end
    from features.documents.extraction.course.job import Passes
    from features.documents.plans import plan, read_calibration
    from features.documents.record_table import require_table

    outputs = Outputs(records=output, table=parquet)
    files = {name: path for name, path in (("schema", schema), ("calibration", calibration)) if path is not None}
    for path in outputs.paths:
        require_replaceable(path)
    require_apart(outputs.paths, {path: f"the {name}" for name, path in files.items()})
    contents = {name: _json_of(path) for name, path in files.items()}
    params = {"logprobs": logprobs, **({} if max_tokens is None else {"max_tokens": max_tokens})}
    job = plan(text_of(schema).encode(), quotes=quotes, params=params, max_fields=max_fields)
    if calibration is not None:
        job = replace(job, calibration=read_calibration(text_of(calibration), str(calibration)))
    if parquet is not None:
        require_table(job.schema)
    base = data_dir or default_data_dir()
    _require_service(base_url, base)
    target = target_of(model, base_url=base_url, window=window, data_dir=base)
    job = replace(job, model=target.model, passes=Passes(again=again))
    options = {"quotes": quotes, "again": again, "top_k": top_k, "max_fields": max_fields}
    order = Order(job=job, body={"index_id": index_id, **options, **params, **contents}, outputs=outputs)
    folder = folder_of(order, place=target.name, data_dir=base)
    end(carry_out(order, target, folder, is_kept=keep), fail_on_errors=fail_on_errors)


def _require_service(base_url: str | None, data_dir: Path) -> None:
    """Raise InputError where no service could have an index."""
    if not is_remote(base_url) and find_running(data_dir) is None:
        raise InputError(
            "an index needs a server. Set TOKENMILL_BASE_URL and TOKENMILL_API_KEY, give --base-url, or start "
            "`tokenmill up`; without one, extract from documents: `tokenmill extract DOCS`."
        )


def _json_of(path: Path) -> Any:
    try:
        return json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}, column {error.colno}: it is not JSON ({error.msg}).") from None
