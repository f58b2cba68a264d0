"""`tokenmill run IN.jsonl -o OUT.jsonl`: a resumable batch from file to file on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.data_dir import default_data_dir
from cli.disk.input_scan import scan_input
from cli.disk.output_path import require_replaceable
from cli.line_tally import SOME_LINES_FAILED, LineTally, by_code, truncated
from cli.options import FailOnErrors, IdempotencyKey
from cli.places.place import ThisMachine
from cli.places.run_folder import RunFolder
from cli.places.session import session_at
from cli.places.stage import ResultFiles, Stage
from cli.served_model import DEMO_NAME, choose_model
from cli.service.options import say
from cli.watching.watch import average_rate
from jobs.counted import counted
from jobs.errors import InputError, ServiceError

if TYPE_CHECKING:
    from cli.disk.input_scan import InputScan
    from cli.served_model import ServedModel


def run(
    input_path: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="OpenAI batch input file.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="File, replaced once complete.")],
    model: Annotated[
        str | None,
        typer.Option(help="Folder, FILE.gguf or Hugging Face id[@revision] [default: the model that the lines name]"),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Unfinished runs are kept in its folder runs/")] = None,
    idempotency_key: IdempotencyKey = None,
    fail_on_errors: FailOnErrors = False,
) -> None:
    """Run a batch file through a model and write the results.

    The lines may use any model name: --model is served under it. Failed lines go to OUT.errors.jsonl; exit status 1 if
    every line failed. After an interruption, even kill -9, the same command resumes. Another --idempotency-key makes
    another run, which computes the same file again.
    """
    results = ResultFiles(answers=output)
    require_replaceable(output)
    _require_errors_replaceable(results)  # before hours of work
    _require_apart(input_path, results)
    scan = scan_input(input_path)
    place = ThisMachine(served=_served_model(model, scan), say=say)
    stage = stage_of(
        input_path, results, scan=scan, model=place.name, data_dir=data_dir or default_data_dir(), key=idempotency_key
    )
    if not stage.is_begun:
        place.require_valid(stage)  # before anything is stored
    with stage.run.held():
        was_done = stage.is_done
        with session_at(place, stage.run, say=say) as session, telling_where_answers_are(stage):
            batch = session.run(stage, is_valid=True)
        stage.forget_batches()
        stage.run.forget_stack()
        tally = _tally(results)
    if was_done:
        say(f"{output} is already complete ({counted(scan.num_lines, 'line')}). Remove it to run again.")
    else:
        _report(tally, batch, results)
    _end(tally, results, fail_on_errors=fail_on_errors)


def stage_of(
    input_path: Path, results: ResultFiles, *, scan: InputScan, model: str, data_dir: Path, key: str | None = None
) -> Stage:
    """Return the stage of the run with this input, model, output and key."""
    identity = "\n".join((scan.sha256, model, str(results.answers.absolute()), *([] if key is None else [key])))
    key = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:24]
    return Stage(run=RunFolder.below(data_dir, key), lines=input_path, results=results, endpoint=scan.endpoint)


def _served_model(model: str | None, scan: InputScan) -> ServedModel:
    """Return the model, served under the name in the file; without --model, that name is the model."""
    name = scan.models[0] if scan.models else None
    if model is not None or name is None or name == DEMO_NAME:
        return choose_model(model, name=name)
    try:
        return choose_model(name, name=name)
    except InputError:
        raise InputError(
            f"the file names the model {name!r}, which is neither a folder nor a Hugging Face id. "
            "Name the model with --model."
        ) from None


@contextmanager
def telling_where_answers_are(stage: Stage) -> Iterator[None]:
    """Raise ServiceError, naming the batch that has the answers, if a file of the results cannot be written."""
    outputs = {str(path.resolve()) for path in (stage.results.answers, stage.results.errors)}
    try:
        yield
    except OSError as error:
        if error.filename not in outputs:
            raise
        batch_id = stage.run.read().batch_id
        raise ServiceError(
            f"cannot write {error.filename}: {error.strerror}. The answers are kept in {batch_id}: run the same "
            "command again once the file can be written, and nothing is computed again. Or write them elsewhere with "
            f"`tokenmill batch results {batch_id} -o FILE` while `tokenmill up --data-dir {stage.run.stack}` runs."
        ) from None


def _tally(results: ResultFiles) -> LineTally:

    tally = LineTally()
    for path in results.paths:
        with path.open("rb") as file:
            for line in file:
                tally.add(line)
    return tally


def _report(tally: LineTally, batch: Any, results: ResultFiles) -> None:
    """Print how many lines are done, and the tokens of the last batch; None if no batch was needed."""
    parts = [f"{tally.num_completed:,} of {counted(tally.num_completed + tally.num_failed, 'line')} completed"]
    if batch is not None:
        rate = average_rate(batch)
        tokens = counted(batch.usage.output_tokens if batch.usage else 0, "output token")
        parts.append(f"{tokens} ({rate})" if rate else tokens)
    say(f"{', '.join(parts)}, written to {results.answers}")


def _end(tally: LineTally, results: ResultFiles, *, fail_on_errors: bool) -> None:
    """Print how many lines failed and answers were truncated, and exit with the matching status."""
    if tally.num_failed:
        say(f"{counted(tally.num_failed, 'line')} failed, see {results.errors}: {by_code(tally.codes)}")
    if cut := truncated(tally.num_truncated):
        say(cut)
    if tally.num_failed and fail_on_errors:
        raise typer.Exit(SOME_LINES_FAILED)
    if tally.num_failed and not tally.num_completed:
        raise typer.Exit(1)


def _require_errors_replaceable(results: ResultFiles) -> None:

    try:
        require_replaceable(results.errors)
    except InputError as error:
        raise InputError(f"failed lines go to {results.errors}: {error}") from None


def _require_apart(input_path: Path, results: ResultFiles) -> None:
    """Raise InputError if the output, or its file of failed lines, would replace the input."""
    for path in results.paths:
        if input_path.exists() and path.samefile(input_path):
            raise InputError(f"{path} would replace the input. Choose another output with -o.")
