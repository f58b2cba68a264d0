"""Follows a batch until it ends, and describes how it ended."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from cli.line_tally import SOME_LINES_FAILED, LineTally, by_code, truncated
from cli.watching.display import progress_display
from cli.watching.patience import Patience, ask_patiently
from cli.watching.progress import ENDED, BatchProgress, Waiting, shown_rate
from jobs.outcomes import standing

if TYPE_CHECKING:
    from openai import OpenAI

_POLL_SECONDS = 0.4
_ANSWER_SECONDS = 30.0  # a server that accepts a connection and never answers is away too
_SILENCE_SECONDS = 60.0  # of a stream of events: our server sends one every 15 s


def watch_batch(
    client: OpenAI,
    batch_id: str,
    *,
    on_poll: Callable[[], None] | None = None,
    waiting: Waiting | None = None,
    patience: Patience | None = None,
) -> Any:
    """Show progress until the batch has ended; return it. Raises ServiceError if the server stays away for too long.

    Uses the server's stream of events if it has one, otherwise polls. With `on_poll`, which runs between polls and may
    raise to stop, it always polls.
    """
    with progress_display(waiting=waiting) as display:
        for batch in _states(client, batch_id, on_poll=on_poll, patience=patience or Patience()):
            display.show(BatchProgress.of(batch))
            if batch.status in ENDED:
                return batch
    raise AssertionError("polling ends with the batch")


def _states(client: OpenAI, batch_id: str, *, on_poll: Callable[[], None] | None, patience: Patience) -> Iterator[Any]:
    has_events = on_poll is None
    do = on_poll or (lambda: None)
    look = partial(client.batches.retrieve, batch_id, timeout=_ANSWER_SECONDS)
    while True:
        yield ask_patiently(client, look, patience=patience, on_poll=do)
        if has_events:
            has_events = yield from _events(client, batch_id)
        do()
        time.sleep(_POLL_SECONDS)


def _events(client: OpenAI, batch_id: str) -> Generator[Any, None, bool]:
    """Yield the batch at each event of the server, and at each keep-alive.

    Returns whether to open the stream again. A server that refuses it is older, of another kind, or has as many readers
    as it allows: it is polled from then on.
    """
    import httpx2
    from openai import APIConnectionError, APIStatusError, Stream
    from openai.types import Batch

    try:
        stream = client.get(
            f"/batches/{batch_id}/events",
            cast_to=Batch,
            options={"timeout": _SILENCE_SECONDS, "max_retries": 0},
            stream=True,
            stream_cls=Stream[Batch],
        )
    except APIStatusError:
        return False
    except APIConnectionError:
        return True
    with stream:
        if not stream.response.headers.get("content-type", "").startswith("text/event-stream"):
            return False
        latest: Batch | None = None
        with suppress(httpx2.TransportError):  # the next poll shows whether the server is still there
            for line in lines_of(stream.response.iter_bytes()):
                if line.startswith(b"data:"):
                    latest = Batch.construct(**json.loads(line.removeprefix(b"data:")))
                    yield latest
                elif line.startswith(b":") and latest is not None:
                    yield latest
    return True


def counts_of(batch: Any) -> tuple[int, int, int]:
    """Return the numbers of done, failed and all lines."""
    counts = batch.request_counts
    return (counts.completed, counts.failed, counts.total) if counts else (0, 0, 0)


def stands(batch: Any) -> str:
    """Return the status of a batch; of a completed one, the outcome of its lines."""
    done, failed, _ = counts_of(batch)
    return standing(batch.status, completed=done, failed=failed)


def cost_of(batch: Any) -> str:
    """Return the exact cost of a batch with the currency; empty on other servers."""
    return f"{getattr(batch, 'cost', '')} {getattr(batch, 'currency', '')}".strip()


def error_codes(client: OpenAI, batch: Any) -> Counter[str]:
    """Count the failed lines of an ended batch by code; empty if its error file is deleted."""
    from openai import NotFoundError

    tally = LineTally()
    if batch.error_file_id:
        with suppress(NotFoundError), client.files.with_streaming_response.content(batch.error_file_id) as answer:
            for line in lines_of(answer.iter_bytes()):
                tally.add(line)
    return tally.codes


def lines_of(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Split at line feeds only: a JSON string may contain other line separators."""
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        yield from whole
    if rest:
        yield rest


def num_truncated(batch: Any) -> int:
    """Return the number of truncated answers; 0 on other servers."""
    return getattr(batch.request_counts, "truncated", None) or 0


def exit_status(batch: Any, *, fail_on_errors: bool) -> int:
    """Return 0 for a completed batch with a good line or without lines; 1 or, for --fail-on-errors, 3 otherwise."""
    done, failed, _ = counts_of(batch)
    if failed and fail_on_errors and batch.status == "completed":
        return SOME_LINES_FAILED
    return 0 if batch.status == "completed" and (done or not failed) else 1


def describe_end(batch: Any, *, codes: Mapping[str, int] | None = None) -> str:
    """Return the outcome of a batch, and how to read why lines failed; `codes` counts those by error code."""
    lines = [_outcome(batch)]
    if codes:
        lines.append(f"  failed lines: {by_code(codes)}")
    if cut := truncated(num_truncated(batch)):
        lines.append(f"  {cut}")
    if batch.errors:
        lines.append(describe_errors(batch))
    if batch.error_file_id:
        lines.append(f"  why lines failed: tokenmill files download {batch.error_file_id} -o errors.jsonl")
    return "\n".join(lines)


def _outcome(batch: Any) -> str:
    done, failed, total = counts_of(batch)
    if batch.status == "failed" and total == 0:  # lines are counted once all are valid
        return "failed validation:"
    counted = f"{stands(batch)}: {done:,} done, {failed:,} failed of {total:,}"
    rate = average_rate(batch)
    return f"{counted}, {rate}" if rate else counted


def average_rate(batch: Any) -> str:
    """Return such as `812 output tok/s`, from creation to end of a batch; empty if not known."""
    return shown_rate(BatchProgress.of(batch).average)


def describe_errors(batch: Any) -> str:
    """Return the listed errors of a failed batch, one per line, and the number of further ones."""
    listed = describe_listed((batch.errors.data if batch.errors else None) or [], most=100)
    num_unlisted = getattr(batch.errors, "num_unlisted", 0)
    return f"{listed}\n  … and {num_unlisted:,} more" if num_unlisted else listed


def describe_listed(errors: Sequence[Any], *, most: int) -> str:
    """Return the first errors of a batch, one per line."""
    lines = [
        f"  line {error.line}: {error.message} ({error.code})" if error.line else f"  {error.message} ({error.code})"
        for error in errors[:most]
    ]
    if len(errors) > most:
        lines.append(f"  … and {len(errors) - most} more")
    return "\n".join(lines)
