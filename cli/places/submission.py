"""Runs a stage as a batch of a server: resumes the batch of an earlier start, or submits one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.client import server_errors_as_sentences
from cli.disk.download import download
from cli.disk.input_file import plain
from cli.places.kept_results import merge, write_rest
from cli.places.stage import Stage
from cli.submitting.results import ResultFiles
from cli.watching.patience import Patience
from cli.watching.progress import ENDED
from cli.watching.watch import describe_errors, watch_batch
from jobs.counted import counted
from jobs.errors import ServiceError

if TYPE_CHECKING:
    from openai import OpenAI

    from cli.watching.progress import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitting:
    """A `Connection` to a server."""

    client: OpenAI
    window: str
    say: Callable[[str], None]
    on_poll: Callable[[], None] | None = None
    """Runs between polls of a batch, and may raise to stop."""
    waiting: Waiting | None = None
    on_refusal: Callable[[], object] = lambda: None
    """Runs if a batch has failed validation: nothing of it can be resumed."""

    def run(self, stage: Stage) -> Any:

        with server_errors_as_sentences(self.client):
            batch = self._begun(stage) or self._submit(stage)
            if batch is None:
                return None
            batch = self._watch(batch.id)
            if batch.status == "completed":
                self._collect(stage, batch)
                return batch
            num_kept = keep_results(self.client, stage, batch)
        if batch.status == "failed":
            self.on_refusal()
        ended = f"the batch ended as {batch.status}."
        if num_kept:
            ended += f" Results of {counted(num_kept, 'line')} are kept; the same command submits the others."
        raise ServiceError(f"{ended}\n{describe_errors(batch)}".rstrip())

    def _begun(self, stage: Stage) -> Any:
        """Return the batch of an earlier start; None if there is none, or it ended without completing."""
        from openai import NotFoundError

        state = stage.run.read()
        if state.batch_id is None:
            return None
        with suppress(NotFoundError):  # its stack or its files were deleted
            batch = self.client.batches.retrieve(state.batch_id)
            if batch.status not in ENDED or batch.status == "completed":
                self.say(f"resuming {batch.id}")
                return batch
            keep_results(self.client, stage, batch)
            return None
        _forget_batch(stage)
        return None

    def _submit(self, stage: Stage) -> Any:
        """Create a batch of the lines without a result; None if all have one."""
        lines = stage.lines
        if stage.kept.paths:
            lines = stage.rest
            if write_rest(stage) == 0:
                self._finish(stage, [stage.kept])
                return None
            self.say(f"{counted(_num_lines(stage.kept), 'line')} with results from an earlier batch")
        return self._create(stage, lines)

    def _create(self, stage: Stage, lines: Path) -> Any:

        state = stage.run.read()
        if state.file_id is None:
            with plain(lines) as named:
                uploaded = self.client.files.create(file=named, purpose="batch")
            state = replace(state, file_id=uploaded.id)
            stage.run.write(state)
        assert state.file_id is not None
        batch = self.client.batches.create(
            input_file_id=state.file_id,
            endpoint=stage.endpoint,  # type: ignore[arg-type]  # the server knows its endpoints
            completion_window=self.window,  # type: ignore[arg-type]  # OpenAI allows one value
            # A kill between this call and the next line must not lead to a second batch.
            extra_headers={"Idempotency-Key": f"run-{stage.run.key}-{state.attempt}-{state.file_id}"},
        )
        stage.run.write(replace(state, batch_id=batch.id))
        return batch

    def _watch(self, batch_id: str) -> Any:

        patience = Patience(goes_on=f"{batch_id} continues; the same command waits for it again")
        try:
            return watch_batch(self.client, batch_id, on_poll=self.on_poll, waiting=self.waiting, patience=patience)
        except KeyboardInterrupt:
            self.say(
                f"{batch_id} continues. The same command waits for it again; or: tokenmill batch cancel {batch_id}"
            )
            raise

    def _collect(self, stage: Stage, batch: Any) -> None:
        """Write the results of a completed batch, merged with the kept ones."""
        if stage.kept.paths:
            _download(self.client, batch, stage.latest)
            self._finish(stage, [stage.kept, stage.latest])
        else:
            _download(self.client, batch, stage.results)
            stage.run.note_outputs(stage.results.paths)

    def _finish(self, stage: Stage, sources: list[ResultFiles]) -> None:
        merge(stage.lines, sources, stage.results)
        stage.run.note_outputs(stage.results.paths)
        stage.forget_batches()


def keep_results(client: OpenAI, stage: Stage, batch: Any) -> int:
    """Keep the results of a batch that did not complete, and forget the batch; return the number kept.

    Repeatable: a kill in between loses nothing.
    """
    num_kept = _num_lines(stage.kept)
    if batch.output_file_id or batch.error_file_id:
        _download(client, batch, stage.latest)
        num_kept = merge(stage.lines, [stage.kept, stage.latest], stage.kept)
        stage.latest.remove()
    _forget_batch(stage)
    return num_kept


def _forget_batch(stage: Stage) -> None:
    state = stage.run.read()
    stage.run.write(replace(state, file_id=None, batch_id=None, attempt=state.attempt + 1))


def _download(client: OpenAI, batch: Any, into: ResultFiles) -> None:
    download(client, batch.output_file_id, into.answers)
    if batch.error_file_id:
        download(client, batch.error_file_id, into.errors)
    else:
        into.errors.unlink(missing_ok=True)  # of an earlier run


def _num_lines(results: ResultFiles) -> int:
    num_lines = 0
    for path in results.paths:
        with path.open("rb") as file:
            num_lines += sum(1 for _ in file)
    return num_lines
