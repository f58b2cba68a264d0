"""`tokenmill map SOURCE -o OUT`: a table through a prompt and a model, to a table with the answers' columns."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.errors import InputError

if TYPE_CHECKING:
    from cli.mapping.job import MapJob
    from cli.mapping.places import Place
    from cli.mapping.running import Tally
    from pipelines.lines.requests import RequestLine, UnrenderedRow


def register(app: typer.Typer) -> None:
    app.command("map")(map_)


def map_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="FILE.jsonl, .csv or .parquet, a folder, a quoted glob, or s3://…")
    ],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="OUT.jsonl, .csv or .parquet; see --dry-run.")
    ] = None,
    prompt: Annotated[Path, typer.Option(metavar="PROMPT.j2", help="Template: {{ column }} is that of a row.")],
    schema: Annotated[
        Path | None, typer.Option(metavar="OUT.json", help="JSON schema of the answers; its properties become columns.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="As for `tokenmill run`; on a server the name of one that it serves")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="A server's [default: $TOKENMILL_BASE_URL; without one, this machine]")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0)] = None,
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=JSON", help="Another field of the requests; may be given again.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Before the names of the new columns.")] = "",
    window: Annotated[str, typer.Option(help="On a server: time to finish in, such as 30m, 24h or 7d.")] = "24h",
    data_dir: Annotated[Path | None, typer.Option(help="Unfinished runs are kept in its folder runs/")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first three prompts and what all would take; run nothing.")
    ] = False,
    fail_on_errors: Annotated[
        bool, typer.Option("--fail-on-errors", help="Exit with status 3 if a row failed.")
    ] = False,
) -> None:
    """Put every row of a table through a prompt, and write the rows with the answers' columns.

    A row that fails keeps its place, and its column `error` says why; exit status 1 if every row failed. Interrupted,
    even by kill -9, the same command goes on where it was.
    """
    from cli.disk.output_path import require_replaceable
    from cli.mapping.job import Wanted, plan
    from cli.up_command import default_data_dir
    from pipelines.outputs.tables import output_format
    from pipelines.sources.files import Format, reads
    from pipelines.sources.reading import open_source

    if output is None and not dry_run:
        raise InputError("no output was given. Say with -o where the table goes, or look first with --dry-run.")
    form = Format.JSONL if output is None else output_format(output.name)
    if output is not None:
        require_replaceable(output)
        if reads(source, output):
            raise InputError(
                f"the output {output} is or would be a file of the source {source}, which the next run would read or "
                "not find again. Choose with -o a path outside it."
            )
    wanted = Wanted(
        prompt=_text(prompt),
        schema=None if schema is None else _json_file(schema),
        params=_params(max_tokens=max_tokens, temperature=temperature, others=param or []),
        prefix=prefix,
        model="",
    )
    rows = open_source(source)
    with _named(prompt, schema):
        job = plan(rows, wanted, form)  # before a server is asked for anything
    place = _place(model, base_url=base_url, window=window)
    job = replace(job, ask=replace(job.ask, model=place.model))
    if dry_run:
        _show(job, place)
        return
    assert output is not None
    _run(job, place, output, base=data_dir or default_data_dir(), fail_on_errors=fail_on_errors)


def _run(job: MapJob, place: Place, output: Path, *, base: Path, fail_on_errors: bool) -> None:
    from cli.mapping.running import compute, folder_of, is_done, write_output

    folder = folder_of(job, place, base=base, output=str(output.absolute()))
    if is_done(folder, output):
        _say(f"{output} is already complete. Remove it to run again.")
        return
    rendered = compute(job, place, folder, say=_say)
    _end(write_output(job, folder, rendered, output), output, fail_on_errors=fail_on_errors)


def _end(tally: Tally, output: Path, *, fail_on_errors: bool) -> None:
    from cli.line_tally import SOME_LINES_FAILED, by_code

    num_failed = tally.codes.total()
    _say(f"{tally.num_answered:,} of {tally.num_answered + num_failed:,} rows answered, written to {output}")
    if num_failed:
        _say(f"{num_failed:,} failed, see the column error: {by_code(tally.codes)}")
    if num_failed and fail_on_errors:
        raise typer.Exit(SOME_LINES_FAILED)
    if num_failed and not tally.num_answered:
        raise typer.Exit(1)


def _show(job: MapJob, place: Place) -> None:
    """Print the first prompts as a model would get them, and what all of them would take."""
    from cli.mapping.running import folder_of
    from cli.table import print_fields

    if job.ask.schema is not None:
        place.check_schema(job.ask.schema)
    shown: list[RequestLine | UnrenderedRow] = []
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as base:
        folder = folder_of(job, place, base=Path(base), output="")
        rendered = folder.render(job, shown=shown)
        for one in shown:
            print(_prompt_of(one))
        fields = {"rows": f"{rendered.num_rows:,}", "unrendered": f"{rendered.num_unrendered:,}"}
        print_fields(fields | place.estimate(folder.lines))


def _prompt_of(one: RequestLine | UnrenderedRow) -> str:
    from pipelines.lines.requests import UnrenderedRow

    if isinstance(one, UnrenderedRow):
        return f"--- row {one.index}: no prompt: {one.error}\n"
    said = "\n".join(f"# {message.role}:\n{message.content}" for message in one.messages)
    return f"--- row {one.index}\n{said}\n"


def _place(model: str | None, *, base_url: str | None, window: str) -> Place:
    """Return a server where one is named, and else this machine."""
    from cli.client import client_from_environment
    from cli.mapping.places import server, this_machine

    if base_url is not None:
        os.environ["TOKENMILL_BASE_URL"] = base_url
    if not os.environ.get("TOKENMILL_BASE_URL"):
        return this_machine(model, say=_say)
    return server(client_from_environment(), model, window=window, say=_say)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Give the path of a file.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: it is no UTF-8 ({error.reason} at byte {error.start}).") from None


def _json_file(path: Path) -> Any:
    text = _text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}, column {error.colno}: it is no JSON ({error.msg}).") from None


def _params(*, max_tokens: int | None, temperature: float | None, others: list[str]) -> dict[str, Any]:
    given = {"max_tokens": max_tokens, "temperature": temperature}
    params = {name: value for name, value in given.items() if value is not None}
    for pair in others:
        name, separator, value = pair.partition("=")
        try:
            params[name] = json.loads(value)
        except json.JSONDecodeError:
            separator = ""
        if not separator or not name:
            raise InputError(f"--param is {pair!r}. Give it as NAME=JSON, such as top_p=0.9 or 'stop=[\"END\"]'.")
    return params


@contextmanager
def _named(prompt: Path, schema: Path | None) -> Iterator[None]:
    """Say of a template or a schema that is refused in which file it stands."""
    try:
        yield
    except InputError as error:
        path = {"template": prompt, "schema": schema}.get(error.param or "")
        if path is None:
            raise
        raise InputError(f"{path}: {error.message}", param=error.param, code=error.code) from None


def _say(message: str) -> None:
    print(f"tokenmill: {message}", file=sys.stderr, flush=True)
