"""`tokenmill run IN.jsonl -o OUT.jsonl`: a resumable batch from file to file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.client import client_from_environment
from cli.data_dir import default_data_dir
from cli.disk.input_scan import named_lines, scan_input
from cli.disk.output_path import require_replaceable
from cli.disk.standard_input import from_stdin
from cli.line_tally import SOME_LINES_FAILED, LineTally, by_code, truncated
from cli.options import FailOnErrors, IdempotencyKey
from cli.served_model import DEMO_NAME, choose_model
from cli.service.choosing import is_remote
from cli.service.local import LocalTarget
from cli.service.options import BaseUrl, Keep, RunDataDir, Window, say
from cli.service.remote import remote_target
from cli.service.running import find_running
from cli.service.service import service_at
from cli.submitting.command_folder import CommandFolder
from cli.submitting.results import ResultFiles, write_results
from cli.submitting.stored import delete_noted, ids_stored
from cli.submitting.submission import Lines, Submission
from cli.submitting.uploading import upload_input
from cli.watching.watch import average_rate
from jobs.counted import counted
from jobs.errors import InputError, ServiceError

if TYPE_CHECKING:
    from cli.disk.input_scan import InputScan
    from cli.served_model import ServedModel
    from cli.service.service import Service, Target


def run(
    input_path: Annotated[
        Path,
        typer.Argument(metavar="IN.jsonl", callback=from_stdin, help="OpenAI batch input file; - for standard input."),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="File, replaced once complete.")],
    model: Annotated[
        str | None,
        typer.Option(help="Folder, FILE.gguf or Hugging Face id[@revision] [default: the model that the lines name]"),
    ] = None,
    base_url: BaseUrl = None,
    window: Window = "24h",
    data_dir: RunDataDir = None,
    keep: Keep = False,
    idempotency_key: IdempotencyKey = None,
    fail_on_errors: FailOnErrors = False,
) -> None:
    """Run a batch file through a model and write the results.

    On this machine the lines may use any model name: --model is served under it. Failed lines go to OUT.errors.jsonl;
    exit status 1 if every line failed. After an interruption, even kill -9, the same command resumes. Another
    --idempotency-key makes another run, which computes the same file again.
    """
    results = ResultFiles(answers=output)
    require_replaceable(output)
    _require_errors_replaceable(results)  # before hours of work
    _require_apart(input_path, results)
    scan = scan_input(input_path)
    base = data_dir or default_data_dir()
    target = _target(model, scan, base_url=base_url, window=window, data_dir=base)
    folder = CommandFolder.below(base, key_of(results, scan=scan, place=target.name, key=idempotency_key))
    if not folder.is_begun:
        target.require_valid(input_path, endpoint=scan.endpoint)  # before anything is stored
    with folder.held():
        is_done, batches = folder.has_written([output]), []
        if not is_done or folder.read().stored:
            with service_at(target, say=say) as service:
                if not is_done:
                    batches = _run(_submission(service, folder, input_path, scan), input_path, results, keep=keep)
                delete_noted(service.client, folder, say=say)
    tally = _tally(results)
    if is_done:
        say(f"{output} is already complete ({counted(scan.num_lines, 'line')}). Remove it to run again.")
    else:
        _report(tally, batches[-1], results)
    _end(tally, results, fail_on_errors=fail_on_errors)


def key_of(results: ResultFiles, *, scan: InputScan, place: str, key: str | None = None) -> str:
    """Return the key of the run with this input, place and model, output and --idempotency-key."""
    identity = "\n".join((scan.sha256, place, str(results.answers.absolute()), *([] if key is None else [key])))
    return hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:24]


def _target(model: str | None, scan: InputScan, *, base_url: str | None, window: str, data_dir: Path) -> Target:
    """Return where the lines run: at a server, or with the model of this machine under the name in the file."""
    name = scan.models[0] if scan.models else None
    if is_remote(base_url):
        if model not in (None, name):
            raise InputError(
                f"--model is {model!r}, and the lines name {name!r}. On a server they use the model that they name: "
                "leave --model out, or change the lines."
            )
        return remote_target(client_from_environment(), name, window=window)
    running = find_running(data_dir)
    served = _served_model(model, scan) if running is None else running.served(model, name=name)
    return LocalTarget(served=served, data_dir=data_dir)


def _submission(service: Service, folder: CommandFolder, input_path: Path, scan: InputScan) -> Submission:
    lines = Lines(
        name=input_path.name.removesuffix(".gz").removesuffix(".jsonl"),
        sha256=scan.sha256,
        endpoint=scan.endpoint,
        upload=lambda service, name: upload_input(service, input_path, name=name),
    )
    return Submission(service=service, folder=folder, lines=lines, say=say)


def _run(submission: Submission, input_path: Path, results: ResultFiles, *, keep: bool) -> list[Any]:
    """Run the lines and write the results; note what is to be deleted. Returns the batches."""
    batches = submission.run()
    client, folder = submission.service.client, submission.folder
    with telling_where_answers_are(results, batches[-1].id):
        write_results(client, batches, results, custom_ids=(name for name, _ in named_lines(input_path)))
    stored = ids_stored(client, folder.key, batches)
    if keep:
        say(f"kept: {', '.join(stored)}")
    folder.note_outputs(results.paths, stored=[] if keep else stored)
    return batches


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
def telling_where_answers_are(results: ResultFiles, batch_id: str) -> Iterator[None]:
    """Raise ServiceError, naming the batch that has the answers, if a file of the results cannot be written."""
    outputs = {str(path.resolve()) for path in (results.answers, results.errors)}
    try:
        yield
    except OSError as error:
        if error.filename not in outputs:
            raise
        raise ServiceError(
            f"cannot write {error.filename}: {error.strerror}. The answers are kept in {batch_id}: run the same "
            "command again once the file can be written, and nothing is computed again. Or write them elsewhere with "
            f"`tokenmill batch results {batch_id} -o FILE` while the service runs (on this machine: `tokenmill up`)."
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
