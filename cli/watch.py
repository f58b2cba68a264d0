"""Follows one batch until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cli.progress import ENDED, BatchProgress, progress_display, shown_rate

if TYPE_CHECKING:
    from openai import OpenAI

_POLL_SECONDS = 0.4
_PATIENCE_SECONDS = 60.0  # how long a server may be away before we give up


def watch_batch(client: OpenAI, batch_id: str, *, on_poll: Callable[[], None] = lambda: None) -> Any:
    """Show progress until the batch has ended; return it. `on_poll` runs between looks, and may raise to stop."""
    with progress_display() as display:
        while True:
            batch = _look(client, batch_id, on_poll=on_poll)
            display.show(BatchProgress.of(batch))
            if batch.status in ENDED:
                return batch
            on_poll()
            time.sleep(_POLL_SECONDS)


def _look(client: OpenAI, batch_id: str, *, on_poll: Callable[[], None]) -> Any:
    """Retrieve the batch; a server that restarts in between is waited for."""
    from openai import APIConnectionError, APIStatusError

    give_up_at = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return client.batches.retrieve(batch_id)
        except (APIConnectionError, APIStatusError) as error:
            is_away = not isinstance(error, APIStatusError) or error.status_code >= 500
            if not is_away or time.monotonic() > give_up_at:
                raise
        on_poll()
        time.sleep(_POLL_SECONDS)


def counts_of(batch: Any) -> tuple[int, int, int]:
    """Return how many lines are done, failed, and there in all."""
    counts = batch.request_counts
    return (counts.completed, counts.failed, counts.total) if counts else (0, 0, 0)


def describe_end(batch: Any) -> str:
    """Return what came of a batch, and how to read why lines failed."""
    lines = [_outcome(batch)]
    if batch.errors:
        lines.append(describe_errors(batch))
    if batch.error_file_id:
        lines.append(f"  why lines failed: tokenmill files download {batch.error_file_id} -o errors.jsonl")
    return "\n".join(lines)


def _outcome(batch: Any) -> str:
    done, failed, total = counts_of(batch)
    if batch.status == "failed" and total == 0:  # a server counts the lines once all of them are good
        return "failed validation:"
    counted = f"{batch.status}: {done} done, {failed} failed of {total}"
    rate = average_rate(batch)
    return f"{counted}, {rate}" if rate else counted


def average_rate(batch: Any) -> str:
    """Return such as `812 output tok/s`, from a batch's creation to its end; empty where that is not known."""
    return shown_rate(BatchProgress.of(batch).average)


def describe_errors(batch: Any) -> str:
    """Return the listed errors of a failed batch, one a line."""
    return describe_listed((batch.errors.data if batch.errors else None) or [])


def describe_listed(errors: Sequence[Any], *, most: int = 10) -> str:
    """Return errors of a batch, or the first of them, one a line."""
    lines = [
        f"  line {error.line}: {error.message} ({error.code})" if error.line else f"  {error.message} ({error.code})"
        for error in errors[:most]
    ]
    if len(errors) > most:
        lines.append(f"  … and {len(errors) - most} more")
    return "\n".join(lines)
