"""`tokenmill map SOURCE -o OUT`: sends the rows of a table through a prompt, and adds columns with the answers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

from cli.data_dir import default_data_dir
from cli.disk.output_path import require_apart, require_replaceable
from cli.disk.standard_input import stdin_copy
from cli.estimating.estimate import estimated
from cli.line_tally import SOME_LINES_FAILED, by_code
from cli.mapping.folder import render
from cli.mapping.job import MapOptions, plan
from cli.mapping.running import check_schema, computed, delete_left, folder_of, write_output, written_before
from cli.mapping.source import map_source
from cli.service.choosing import target_of
from cli.service.options import BaseUrl, Keep, Model, Param, RunDataDir, Window, json_params, say, text_of
from cli.table import print_fields
from features.pipelines.rows.lines.requests import UnrenderedRow
from features.pipelines.rows.outputs.tables import output_format
from features.pipelines.rows.sources.files import Format, reads
from jobs.counted import counted
from jobs.errors import InputError
from protocol.sampling import MAX_TEMPERATURE

if TYPE_CHECKING:
    from cli.mapping.job import MapJob
    from cli.mapping.running import Tally
    from cli.service.service import Target
    from features.pipelines.rows.lines.requests import RequestLine


def map_(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="FILE.jsonl, .csv, .tsv, .xlsx or .parquet, a folder, a quoted glob, s3://…, or - (JSONL).",
        ),
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="OUT.jsonl, .csv or .parquet; optional with --dry-run."),
    ] = None,
    prompt: Annotated[Path, typer.Option(metavar="PROMPT.j2", help="Template; {{ column }} is the value of a row.")],
    schema: Annotated[
        Path | None, typer.Option(metavar="OUT.json", help="JSON schema of the answers; its properties become columns.")
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, max=MAX_TEMPERATURE)] = None,
    param: Param = None,
    thoughts: Annotated[
        bool, typer.Option("--thoughts", help="Add a column with the thoughts of a model that thinks.")
    ] = False,
    prefix: Annotated[str, typer.Option(help="Prefix of the new columns' names.")] = "",
    window: Window = "24h",
    data_dir: RunDataDir = None,
    keep: Keep = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first three prompts and an estimate; run nothing.")
    ] = False,
    fail_on_errors: Annotated[
        bool, typer.Option("--fail-on-errors", help="Exit with status 3 if a row failed.")
    ] = False,
) -> None:
    """Send every row of a table through a prompt, and write the rows with columns for the answers.

    A failed row keeps its place, with the reason in the column `error`; exit status 1 if every row failed. After an
    interruption, even kill -9, the same command resumes.
    """
    if output is None and not dry_run:
        raise InputError("no output was given. Name a file for the table with -o, or try --dry-run first.")
    form = Format.JSONL if output is None else output_format(output.name)
    if output is not None:
        require_replaceable(output)
        require_apart([output], {prompt: "the prompt"} | ({} if schema is None else {schema: "the schema"}))
        if reads(source, output):
            raise InputError(
                f"the output {output} is or would be a file of the source {source}, which the next run would read or "
                "not find again. Choose with -o a path outside it."
            )
    options = MapOptions(
        prompt=text_of(prompt),
        schema=None if schema is None else _json_file(schema),
        params=json_params(max_tokens=max_tokens, temperature=temperature, others=param or []),
        thoughts=thoughts,
        prefix=prefix,
        model="",
    )
    rows = map_source(source, stdin_copy=stdin_copy(context, source))
    for note in rows.notes:
        say(note)
    with _named(prompt, schema):
        job = plan(rows, options, form)  # before any request to a server
    base = data_dir or default_data_dir()
    target = target_of(model, base_url=base_url, window=window, data_dir=base)
    job = replace(job, ask=replace(job.ask, model=target.model))
    if dry_run:
        _show(job, target)
        return
    assert output is not None
    tally = _run(job, target, output, base=base, keep=keep)
    _end(tally, fail_on_errors=fail_on_errors)


def _run(job: MapJob, target: Target, output: Path, *, base: Path, keep: bool) -> Tally:
    check_schema(job, target)
    mapped = folder_of(job, target, base=base, output=str(output.absolute()))
    with mapped.command.held():
        tally = written_before(mapped, output)
        if tally is None:
            with computed(job, target, mapped, say=say) as work:
                tally = write_output(work, output, keep=keep, say=say)
            num_rows = tally.num_answered + tally.codes.total()
            say(f"{tally.num_answered:,} of {counted(num_rows, 'row')} answered, written to {output}")
        else:
            delete_left(mapped, target, say=say)
            say(f"{output} is already complete. Remove it to run again.")
    return tally


def _end(tally: Tally, *, fail_on_errors: bool) -> None:
    """Print how many rows failed, and exit with the matching status."""
    num_failed = tally.codes.total()
    if num_failed:
        say(f"{num_failed:,} failed, see the column error: {by_code(tally.codes)}")
    if num_failed and fail_on_errors:
        raise typer.Exit(SOME_LINES_FAILED)
    if num_failed and not tally.num_answered:
        raise typer.Exit(1)


def _show(job: MapJob, target: Target) -> None:
    """Print the first prompts as the model gets them, and an estimate for all."""
    check_schema(job, target)
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as folder, tempfile.TemporaryFile() as unrendered:
        path = Path(folder) / "lines.jsonl"
        with path.open("wb") as lines:
            rendered, rendering = render(job, cast(BinaryIO, unrendered), consume=lines.writelines)
        for one in rendering.shown:
            print(_prompt_of(one))
        fields = {"rows": f"{rendered.num_rows:,}", "unrendered": f"{rendered.num_unrendered:,}"}
        _, estimate = estimated(target, path)
        print_fields(fields | estimate)


def _prompt_of(one: RequestLine | UnrenderedRow) -> str:
    if isinstance(one, UnrenderedRow):
        return f"--- row {one.index}: no prompt: {one.error}\n"
    messages = "\n".join(f"# {message.role}:\n{message.content}" for message in one.messages)
    return f"--- row {one.index}\n{messages}\n"


def _json_file(path: Path) -> Any:
    text = text_of(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}, column {error.colno}: it is not JSON ({error.msg}).") from None


@contextmanager
def _named(prompt: Path, schema: Path | None) -> Iterator[None]:
    """Name the file in errors about the template or the schema."""
    try:
        yield
    except InputError as error:
        path = {"template": prompt, "schema": schema}.get(error.param or "")
        if path is None:
            raise
        raise InputError(f"{path}: {error.message}", param=error.param, code=error.code) from None
