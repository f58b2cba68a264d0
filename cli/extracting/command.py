"""`tokenmill extract DOCS --schema S -o fields.jsonl`: fields from documents, with their places."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cli.data_dir import default_data_dir
from cli.disk.output_path import require_apart, require_replaceable
from cli.extracting.options import Keep
from cli.extracting.sources import documents_of, require_outside
from cli.service.choosing import target_of
from cli.service.options import BaseUrl, Model, Param, RunDataDir, Window, json_params, text_of
from jobs.errors import InputError

_OWN_FIELDS = ("logprobs", "max_tokens")
"""Fields of questions that the request for an extraction has itself; others are its `params`."""


def run(
    documents: Annotated[
        list[str], typer.Argument(metavar="DOCS", help="Files, folders and quoted globs: PDF, HTML, mail, text …")
    ],
    *,
    schema: Annotated[Path, typer.Option(metavar="S.json", help="JSON schema of the fields.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT.jsonl", help="One record per document; optional with --dry-run."),
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="OUT.parquet", help="Also write the fields as a table.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="R.html", help="A page of the most doubtful documents with marked values.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="C.json", help="Calibration of scores, from `tokenmill extract calibrate`.")
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(metavar="GOLD.jsonl", help="Documents with known fields; prompts show up to three similar ones."),
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    quotes: Annotated[
        bool, typer.Option(help="Ask for a quote with each value; otherwise the value itself is searched.")
    ] = True,
    logprobs: Annotated[
        bool, typer.Option(help="Ask for token probabilities: better scores, about 10 kB more per document.")
    ] = True,
    again: Annotated[bool, typer.Option(help="Ask for doubtful fields again.")] = True,
    second_reading: Annotated[
        bool,
        typer.Option("--second-reading", help="Ask a second time in another way: better scores, twice the tokens."),
    ] = False,
    cover: Annotated[
        bool,
        typer.Option(
            "--cover", help="Ask again with the found values covered: finds contradictions, twice the tokens."
        ),
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=16, help="Longest answer [default: twice the length expected from the schema]")
    ] = None,
    max_fields: Annotated[int, typer.Option(min=1, help="Most fields per prompt; a larger schema is split.")] = 25,
    param: Param = None,
    window: Window = "24h",
    data_dir: RunDataDir = None,
    keep: Keep = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the prompt of one document and an estimate for all; run nothing.")
    ] = False,
    fail_on_errors: Annotated[
        bool, typer.Option("--fail-on-errors", help="Exit with status 3 if a document failed.")
    ] = False,
) -> None:
    """Extract the fields of a schema from documents.

    A document that cannot be read has a record with its error, and the others continue; exit status 1 if all failed.
    After an interruption, even kill -9, the same command resumes.
    """
    from cli.extracting.carrying_out import carry_out
    from cli.extracting.dry_run import show_dry_run
    from cli.extracting.known import read_examples
    from cli.extracting.order import Order, folder_of, inputs_of
    from cli.extracting.outputs import Outputs
    from cli.extracting.screen import end
    from features.documents.extraction.course.job import Passes
    from features.documents.plans import check_params, plan, read_calibration
    from features.documents.record_table import require_table

    if output is None and not dry_run:
        raise InputError("no output was given. Name a file for the records with -o, or try --dry-run first.")
    outputs = Outputs(records=output or Path("-"), table=parquet, report=report)
    files = documents_of(documents)
    if output is not None:
        inputs = {schema: "the schema", calibration: "the calibration", examples: "the examples"}
        _require_apart(outputs.paths, files, inputs={path: name for path, name in inputs.items() if path is not None})
        require_outside(outputs.paths, documents)
    asked = text_of(schema)
    params = {"logprobs": logprobs, **json_params(max_tokens=max_tokens, temperature=0.0, others=param or [])}
    check_params(params)
    job = plan(asked.encode(), quotes=quotes, params=params, max_fields=max_fields)
    learned = None if calibration is None else text_of(calibration)
    if learned is not None:
        job = replace(job, calibration=read_calibration(learned, str(calibration)))
    known = None if examples is None else read_examples(examples, job.schema)
    if known is not None:
        job = replace(job, examples=known.examples)
    if parquet is not None:
        require_table(job.schema)
    target = target_of(model, base_url=base_url, window=window, data_dir=data_dir)
    job = replace(job, model=target.model, passes=Passes(again=again, second_reading=second_reading, cover=cover))
    for group in range(len(job.groups)):
        target.check_schema(job.first_request(group, "").response_format["json_schema"]["schema"])
    if dry_run:
        show_dry_run(job, target, files)
        return
    body = {
        "schema": json.loads(asked),
        "quotes": quotes,
        "again": again,
        "second_reading": second_reading,
        "cover": cover,
        "max_fields": max_fields,
        "calibration": None if learned is None else json.loads(learned),
        **{name: params[name] for name in _OWN_FIELDS if name in params},
        "params": {name: value for name, value in params.items() if name not in _OWN_FIELDS},
    }
    content = None if known is None else known.content
    order = Order(job=job, body=body, outputs=outputs, inputs=inputs_of(files), examples=content)
    folder = folder_of(order, place=target.name, data_dir=data_dir or default_data_dir())
    end(carry_out(order, target, folder, is_kept=keep), fail_on_errors=fail_on_errors)


def _require_apart(outputs: list[Path], files: list[Path], *, inputs: dict[Path, str]) -> None:
    """Raise InputError if an output cannot be written, or would replace an input or another output."""
    for path in outputs:
        require_replaceable(path)
    require_apart(outputs, dict.fromkeys(files, "one of the documents") | inputs)
