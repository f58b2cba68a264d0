"""`tokenmill run IN.jsonl -o OUT.jsonl`: one batch from file to file on this machine, resumable."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.errors import InputError, ServiceError

if TYPE_CHECKING:
    from openai import OpenAI

    from cli.run_state import InputScan, RunFolder, RunState
    from cli.served_model import ServedModel

_WINDOW = "30d"  # nobody waits on a deadline here; it only has to outlast the run
_MAX_DEATHS = 5
_NOTHING_LEFT = ("completed", "failed")  # written to the output, or refused before any line ran
# A stopped run gives up its unfinished lines rather than make the user wait; finished ones are already saved.
_DRAIN_SECONDS = "3"


def register(app: typer.Typer) -> None:
    app.command()(run)


def run(
    input_path: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="OpenAI batch input file.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="Replaced when complete.")],
    model: Annotated[
        str | None,
        typer.Option(help="Folder, FILE.gguf or Hugging Face id[@revision] [default: what the file's lines name]"),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Unfinished runs are kept in its folder runs/")] = None,
    fail_on_errors: Annotated[
        bool, typer.Option("--fail-on-errors", help="Exit with status 3 if a line failed.")
    ] = False,
) -> None:
    """Run a batch file through a model and write the results.

    The lines' own model name may be anything: the model given here is served under it. Failed lines go to
    OUT.errors.jsonl; exit status 1 if every line failed. Interrupted, even by kill -9, the same command goes on where
    it was.
    """
    from cli.disk.input_check import require_valid
    from cli.disk.output_path import require_replaceable
    from cli.run_state import outputs_are_intact, run_folder, scan_input
    from cli.up_command import default_data_dir
    from cli.watch import average_rate

    require_replaceable(output)
    _require_errors_replaceable(output)  # now, and not after hours of work
    _require_apart(input_path, output)
    scan = scan_input(input_path)
    served = _served_model(model, scan)
    folder = run_folder(data_dir or default_data_dir(), scan=scan, model=served.path, output=output)
    state = folder.read()
    if outputs_are_intact(state):
        _say(f"{output} is already complete ({_lines(scan.num_lines)}). Remove it to run again.")
        _end(output, fail_on_errors=fail_on_errors)
        return
    if state.file_id is None:  # else an earlier start has checked it
        require_valid(input_path, endpoint=scan.endpoint, model=served.name)
    batch = run_on_this_machine(folder, input_path, output, scan=scan, served=served)
    _report(batch, output, rate=average_rate(batch))
    _end(output, fail_on_errors=fail_on_errors)


def run_on_this_machine(
    folder: RunFolder, input_path: Path, output: Path, *, scan: InputScan, served: ServedModel
) -> Any:
    """Run a file's lines through a stack of the run's own; return the batch, once its results are at `output`.

    Goes on where an earlier start was. Raises ServiceError where the batch does not complete.
    """
    from cli.client import make_client, server_errors_as_sentences
    from cli.embedded.sockets import free_port
    from cli.progress import Waiting
    from cli.stack import StackOptions, running_stack
    from cli.supervisor import StopRequestedError
    from cli.watch import describe_errors, watch_batch

    options = StackOptions(
        data_dir=folder.stack,
        model=served,
        port=free_port(),
        max_deaths=_MAX_DEATHS,
        environment={"TOKENMILL_DRAIN_SECONDS": _DRAIN_SECONDS},
    )
    _say(f"loading {served.path} for {_lines(scan.num_lines)}")
    try:
        with running_stack(options, say=_say, say_step=lambda _step: None) as stack:
            client = make_client(stack.base_url, stack.api_key)
            with client, server_errors_as_sentences(client):
                batch = find_or_submit(client, folder, input_path, scan=scan)
                waiting = Waiting(is_budget_alone=True)  # the worker is being started
                batch = watch_batch(client, batch.id, on_poll=stack.supervisor.tend_or_stop, waiting=waiting)
                if batch.status == "completed":
                    collect(client, batch, folder, output)
    except StopRequestedError:
        _say("stopped. Run the same command again to go on.")
        raise typer.Exit(130) from None
    if batch.status in _NOTHING_LEFT:
        folder.forget_stack()
    if batch.status != "completed":
        raise ServiceError(f"the batch {batch.status}:\n{describe_errors(batch)}")
    return batch


def _served_model(given: str | None, scan: InputScan) -> ServedModel:
    """Serve the model under the name the file uses; without --model, take that name as the model."""
    from cli.served_model import DEMO_NAME, choose_model

    name = scan.models[0] if scan.models else None
    if given is not None or name is None or name == DEMO_NAME:
        return choose_model(given, name=name)
    try:
        return choose_model(name, name=name)
    except InputError:
        raise InputError(
            f"the file names the model {name!r}, which is neither a folder nor a Hugging Face id. "
            "Say with --model which one to run it with."
        ) from None


def find_or_submit(
    client: OpenAI, folder: RunFolder, input_path: Path, *, scan: InputScan, window: str = _WINDOW
) -> Any:
    """Return the batch of an earlier start, or upload the file and create one."""
    from openai import NotFoundError

    state = folder.read()
    if state.batch_id is not None:
        with suppress(NotFoundError):  # its stack was removed by hand
            batch = client.batches.retrieve(state.batch_id)
            if batch.status not in ("failed", "expired", "cancelled"):
                _say(f"going on with {batch.id}")
                return batch
        state = replace(state, file_id=None, batch_id=None, attempt=state.attempt + 1)
    return _submit(client, folder, state, input_path, scan=scan, window=window)


def _submit(
    client: OpenAI, folder: RunFolder, state: RunState, input_path: Path, *, scan: InputScan, window: str
) -> Any:
    from cli.disk.input_file import plain

    if state.file_id is None:
        with plain(input_path) as named:
            uploaded = client.files.create(file=named, purpose="batch")
        state = replace(state, file_id=uploaded.id)
        folder.write(state)
    assert state.file_id is not None
    batch = client.batches.create(
        input_file_id=state.file_id,
        endpoint=scan.endpoint,  # type: ignore[arg-type]  # the server knows which ones exist
        completion_window=window,  # type: ignore[arg-type]  # longer than OpenAI's only choice
        # A kill between this call and the next line must not lead to a second batch.
        extra_headers={"Idempotency-Key": f"run-{folder.key}-{state.attempt}-{state.file_id}"},
    )
    folder.write(replace(state, batch_id=batch.id))
    return batch


def collect(client: OpenAI, batch: Any, folder: RunFolder, output: Path) -> None:
    """Download what a completed batch wrote, and note it as complete."""
    from cli.disk.download import download
    from cli.run_state import sha256_of

    errors = errors_path(output)
    written = [output]
    download(client, batch.output_file_id, output)
    if batch.error_file_id:
        download(client, batch.error_file_id, errors)
        written.append(errors)
    else:
        errors.unlink(missing_ok=True)  # of an earlier run; it would be taken for this one's
    noted = {str(path.absolute()): sha256_of(path) for path in written}
    folder.write(replace(folder.read(), outputs=noted))


def errors_path(output: Path) -> Path:
    """Return `out.errors.jsonl` for `out.jsonl`."""
    return output.with_name(f"{output.stem}.errors{output.suffix or '.jsonl'}")


def _report(batch: Any, output: Path, *, rate: str) -> None:
    counts = batch.request_counts
    tokens = f"{batch.usage.output_tokens if batch.usage else 0:,} output tokens"
    made = f"{tokens} ({rate})" if rate else tokens
    _say(f"{counts.completed} of {_lines(counts.total)} completed, {made}, written to {output}")


def _end(output: Path, *, fail_on_errors: bool) -> None:
    """Say which lines failed and which answers were cut short, and exit as that asks."""
    from cli.line_tally import SOME_LINES_FAILED, LineTally, by_code, truncated

    tally, errors = LineTally(), errors_path(output)
    for path in (output, errors):
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    tally.add(line)
    if tally.num_failed:
        _say(f"{_lines(tally.num_failed)} failed, see {errors}: {by_code(tally.codes)}")
    if cut := truncated(tally.num_truncated):
        _say(cut)
    if tally.num_failed and fail_on_errors:
        raise typer.Exit(SOME_LINES_FAILED)
    if tally.num_failed and not tally.num_completed:
        raise typer.Exit(1)


def _lines(count: int) -> str:
    return f"{count} line" if count == 1 else f"{count} lines"


def _require_errors_replaceable(output: Path) -> None:
    from cli.disk.output_path import require_replaceable

    try:
        require_replaceable(errors_path(output))
    except InputError as error:
        raise InputError(f"lines that fail go to {errors_path(output)}: {error}") from None


def _require_apart(input_path: Path, output: Path) -> None:
    """Raise InputError where the output, or its file of failed lines, would replace the input."""
    for path in (output, errors_path(output)):
        if path.exists() and input_path.exists() and path.samefile(input_path):
            raise InputError(f"{path} would replace the input. Choose another output with -o.")


def _say(message: str) -> None:
    print(f"tokenmill: {message}", file=sys.stderr, flush=True)
