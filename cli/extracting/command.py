"""`tokenmill extract DOCS --schema S -o fields.jsonl`: documents into fields, each with its place in the document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.data_dir import default_data_dir
from cli.disk.output_path import require_apart, require_replaceable
from cli.extracting.sources import documents_of, require_outside
from cli.places.options import BaseUrl, Model, Param, Window, json_params, say, text_of
from cli.places.place import place_of
from jobs.errors import InputError

if TYPE_CHECKING:
    pass


def extract(
    documents: Annotated[
        list[str], typer.Argument(metavar="DOCS", help="Files, folders and quoted globs: PDF, HTML, mail, text …")
    ],
    *,
    schema: Annotated[Path, typer.Option(metavar="S.json", help="JSON schema of the fields.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT.jsonl", help="A record a document; see --dry-run.")
    ] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="OUT.parquet", help="The fields as a table, too.")] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="R.html", help="A page of the most doubtful documents, values marked.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="C.json", help="Of `tokenmill extract calibrate`: what scores mean.")
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(metavar="GOLD.jsonl", help="Known documents: each prompt shows up to three that are most alike."),
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    quotes: Annotated[
        bool, typer.Option(help="Ask for the words that hold each value; else the value itself is looked for.")
    ] = True,
    logprobs: Annotated[
        bool, typer.Option(help="Ask how likely each token is: better scores, and some 10 kB more a document.")
    ] = True,
    again: Annotated[bool, typer.Option(help="Ask for doubtful fields a second time.")] = True,
    second_reading: Annotated[
        bool,
        typer.Option("--second-reading", help="Read each document another way, too: better scores, twice the tokens."),
    ] = False,
    cover: Annotated[
        bool,
        typer.Option(
            "--cover", help="Ask once more with the found values covered: shows contradictions, twice the tokens."
        ),
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=16, help="The longest answer [default: twice what the schema lets expect]")
    ] = None,
    max_fields: Annotated[int, typer.Option(min=1, help="Fields asked at once; a larger schema is split.")] = 25,
    param: Param = None,
    window: Window = "24h",
    data_dir: Annotated[
        Path | None, typer.Option(help="Unfinished runs are kept in its folder runs/, read documents in documents/")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what one document is asked and what all would take; run nothing.")
    ] = False,
    fail_on_errors: Annotated[
        bool, typer.Option("--fail-on-errors", help="Exit with status 3 if a document failed.")
    ] = False,
) -> None:
    """Extract the fields of a schema from documents, with the place of each value.

    A document that cannot be read has a record with its error, and the others go on; exit status 1 if every one
    failed. Interrupted, even by kill -9, the same command goes on where it was. `tokenmill extract evaluate` tells how
    much of the records is right, `calibrate` learns from known documents what the scores mean. With --index INDEX_ID in
    place of DOCS a server asks one of its indexes for the fields: `tokenmill extract --index --help`.
    """
    from cli.extracting.known import read_examples
    from cli.extracting.one_run import run, show
    from cli.extracting.outputs import Outputs
    from cli.extracting.prepared import ParseCache
    from cli.extracting.running import check_schemas, written_before
    from cli.extracting.screen import end
    from cli.extracting.work import folder_of
    from features.documents.extraction.course.job import Passes
    from features.documents.plans import plan, read_calibration
    from features.documents.record_table import require_table

    if output is None and not dry_run:
        raise InputError("no output was given. Say with -o where the records go, or look first with --dry-run.")
    outputs = Outputs(records=output or Path("-"), table=parquet, report=report)
    files = documents_of(documents)
    if output is not None:
        given = {schema: "the schema", calibration: "the calibration", examples: "the examples"}
        _require_apart(outputs.paths, files, given={path: name for path, name in given.items() if path is not None})
        require_outside(outputs.paths, documents)
    base = data_dir or default_data_dir()
    params = {"logprobs": logprobs, **json_params(max_tokens=max_tokens, temperature=0.0, others=param or [])}
    _require_free(params)
    job = plan(text_of(schema).encode(), quotes=quotes, params=params, max_fields=max_fields)
    if calibration is not None:
        job = replace(job, calibration=read_calibration(text_of(calibration), str(calibration)))
    if examples is not None:
        job = replace(job, examples=read_examples(examples, job.schema, ParseCache.below(base)))
    if parquet is not None:
        require_table(job.schema)
    passes = Passes(again=again, second_reading=second_reading, cover=cover)
    place = place_of(model, base_url=base_url, window=window)
    job = replace(job, model=place.model, passes=passes)
    check_schemas(job, place)
    if dry_run:
        show(job, place, files)
        return
    folder = folder_of(job, files, place=place.name, base=base, outputs=outputs.paths)
    with folder.run.held():
        tally = written_before(folder, outputs.paths)
        if tally is None:
            tally = run(job, place, folder, files, outputs=outputs)
        else:
            folder.free_disk()  # where the start that wrote it was killed
            say(f"{output} is already complete. Remove it to run again.")
    end(tally, fail_on_errors=fail_on_errors)


def _require_free(params: Mapping[str, Any]) -> None:
    taken = {"messages", "model", "response_format", "n"} & params.keys()
    if taken:
        raise InputError(f"--param is given {sorted(taken)[0]}, which the schema, the documents and --model decide.")


def _require_apart(outputs: list[Path], files: list[Path], *, given: dict[Path, str]) -> None:
    """Raise InputError where an output cannot be written, or would replace what is read or another output."""
    for path in outputs:
        require_replaceable(path)
    require_apart(outputs, dict.fromkeys(files, "one of the documents") | given)
