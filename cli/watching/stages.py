"""Follows what a service builds in stages, an extraction or an index, until it has ended.

In a terminal there is a bar for each stage; elsewhere a line with all stages, when one begins and every ten seconds.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from cli.watching.patience import Patience, ask_patiently
from cli.watching.stage_counts import counts_of, expected_end

if TYPE_CHECKING:
    from cli.calls import Calls

_POLL_SECONDS = 0.5
_LINE_EVERY_SECONDS = 10.0
_OPEN = ("in_progress", "cancelling")


def until_ended(
    calls: Calls, path: str, *, on_poll: Callable[[], None] = lambda: None, patience: Patience | None = None
) -> dict[str, Any]:
    """Show the progress of an extraction or an index, and return it once it has ended.

    `on_poll` runs between polls, and may raise to stop. Raises ServiceError if the server stays away for too long.
    """
    with stages_display() as display:
        while True:
            latest = ask_patiently(calls.client, lambda: calls.get(path), patience=patience, on_poll=on_poll)
            if latest["status"] not in _OPEN:
                return latest
            display.show(latest)
            on_poll()
            time.sleep(_POLL_SECONDS)


def progress(obj: dict[str, Any]) -> str:
    """Return the progress of each stage, the expected end, and the reason for a wait."""
    stages = [f"{name} {done:,}/{total:,}" for name, done, _, total in counts_of(obj)]
    return " · ".join(filter(None, (*stages, expected_end(obj, now=time.time()), obj["reason"])))


class StagesDisplay(Protocol):
    def show(self, obj: dict[str, Any]) -> None: ...


@contextmanager
def stages_display(
    stream: TextIO | None = None, *, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[StagesDisplay]:
    """Open the display for `stream` (standard error by default)."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield PlainStages(stream, monotonic=monotonic)
        return
    from cli.watching.live_stages import live_stages  # loads rich, which a pipe does not need

    with live_stages(stream) as display:
        yield display


class PlainStages:
    """Writes a line when a stage begins, the reason for a wait changes, and every ten seconds."""

    def __init__(self, stream: TextIO, *, monotonic: Callable[[], float]) -> None:
        self._stream = stream
        self._monotonic = monotonic
        self._last: tuple[int, str] | None = None
        self._last_line_at = 0.0

    def show(self, obj: dict[str, Any]) -> None:
        now, is_at = self._monotonic(), (len(obj["stages"]), re.sub(r"\d[\d,.]*", "#", obj["reason"] or ""))
        if is_at == self._last and now - self._last_line_at < _LINE_EVERY_SECONDS:
            return
        self._last, self._last_line_at = is_at, now
        if line := progress(obj):
            print(line, file=self._stream, flush=True)
