"""Runs lines as a batch of a service, or continues with that of an earlier start of the same command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cli.client import server_errors_as_sentences
from cli.submitting.stored import delete_stored, ids_stored, upload_name, uploads_of
from cli.watching.patience import Patience
from cli.watching.progress import ENDED
from cli.watching.watch import counts_of, describe_errors, watch_batch
from jobs.counted import counted
from jobs.errors import ServiceError

if TYPE_CHECKING:
    from cli.service.service import Service
    from cli.submitting.command_folder import CommandFolder

_OPEN = ("validating", "in_progress")
_NOTHING_TO_RETRY = "nothing_to_retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The lines of a command."""

    name: str
    """The name of their file, without a suffix."""
    sha256: str
    """Of their content."""
    endpoint: str
    upload: Callable[[Service, str], Any]
    """Uploads them to a service as a file with a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The lines of a command at a service, which finds their batch by the command's key."""

    service: Service
    folder: CommandFolder
    lines: Lines
    say: Callable[[str], None]

    def run(self) -> list[Any]:
        """Run the lines until each has a result; return the batches with the results.

        The first batch has all lines, each other one those that did not run in the batch before. Raises ServiceError
        if a batch ends without completing: the next start submits the lines that did not run.
        """
        batches: list[Any] = []
        with server_errors_as_sentences(self.service.client):
            while not batches or batches[-1].status != "completed":
                batch = self._rest(batches[-1], number=len(batches)) if batches else self._first()
                if batch is not None:
                    batches.append(self._ended(batch, before=batches))
                elif any(counts_of(batches[-1])[:2]):
                    break  # all lines had run before it ended
                else:
                    batches = self._without(batches.pop(), before=batches)  # it ended before its lines were known
        return batches

    def _first(self) -> Any:
        """Create the batch of all lines, or return that of an earlier start: both requests have the same key."""
        state = self.folder.read()
        window = state.window or self.service.window
        self.folder.write(replace(state, window=window, outputs=None))
        client, key = self.service.client, self.folder.key
        uploads = uploads_of(client, key)
        file = uploads[0] if uploads else self.lines.upload(self.service, upload_name(self.lines.name, key))
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint=self.lines.endpoint,  # type: ignore[arg-type]  # the server knows its endpoints
            completion_window=window,  # type: ignore[arg-type]  # OpenAI allows one value
            extra_body={"input_sha256": self.lines.sha256},
            extra_headers={"Idempotency-Key": f"run-{key}"},
        )
        if uploads:
            self.say(f"resuming {batch.id}")
        return batch

    def _rest(self, batch: Any, *, number: int) -> Any:
        """Create the batch of the lines that did not run, or return that of an earlier start; None if all have run."""
        from openai import ConflictError
        from openai.types import Batch

        key = {"Idempotency-Key": f"run-{self.folder.key}-{number}"}
        try:
            rest = self.service.client.post(f"/batches/{batch.id}/retry", cast_to=Batch, options={"headers": key})
        except ConflictError as refusal:
            if refusal.code == _NOTHING_TO_RETRY:
                return None
            raise
        self.say(f"{counted(counts_of(batch)[0], 'line')} with answers from {batch.id}; {rest.id} runs the others")
        return rest

    def _ended(self, batch: Any, *, before: Sequence[Any]) -> Any:
        """Watch a batch; return it once it has completed, or as an earlier start left it. Raises ServiceError."""
        if batch.status in ENDED and not _has_nothing(batch):
            return batch
        if batch.status not in ENDED:
            batch = self._watched(self._within_window(batch))
        if batch.status == "completed":
            return batch
        ended = f"the batch ended as {batch.status}."
        if _has_nothing(batch):
            self._without(batch, before=before)
        elif num_done := counts_of(batch)[0]:
            ended += f" Answers of {counted(num_done, 'line')} are kept; the same command submits the others."
        raise ServiceError(f"{ended}\n{describe_errors(batch)}".rstrip())

    def _without(self, batch: Any, *, before: Sequence[Any]) -> list[Any]:
        """Delete a batch without results, and those before it unless one has answers; return what is left."""
        kept = list(before) if any(counts_of(one)[0] for one in before) else []
        if kept:
            ids = [batch.id, batch.input_file_id]
        else:
            ids = ids_stored(self.service.client, self.folder.key, [*before, batch])
            self.folder.forget()
        delete_stored(self.service.client, ids, say=self.say)
        return kept

    def _within_window(self, batch: Any) -> Any:
        """Give a batch the window of this start."""
        from openai.types import Batch

        if batch.completion_window == self.service.window or batch.status not in _OPEN:
            return batch
        body = {"completion_window": self.service.window}
        return self.service.client.post(f"/batches/{batch.id}", cast_to=Batch, body=body)

    def _watched(self, batch: Any) -> Any:
        service, batch_id = self.service, batch.id
        patience = Patience(goes_on=f"{batch_id} continues; the same command waits for it again")
        try:
            return watch_batch(
                service.client, batch_id, on_poll=service.on_poll, waiting=service.waiting, patience=patience
            )
        except KeyboardInterrupt:
            self.say(
                f"{batch_id} continues. The same command waits for it again; or: tokenmill batch cancel {batch_id}"
            )
            raise


def _has_nothing(batch: Any) -> bool:
    """Return whether a batch has failed before a line ran, such as in validation: nothing of it can be resumed."""
    return batch.status == "failed" and not any(counts_of(batch)[:2])
