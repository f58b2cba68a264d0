"""Asks a server that may be away for a while: it restarts, or the network between is gone. Knows no batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from cli.client import cause
from jobs.errors import ServiceError

if TYPE_CHECKING:
    from openai import OpenAI

T = TypeVar("T")

DEFAULT = timedelta(hours=1)
_ASK_SECONDS = 0.4
_SAY_SECONDS = 600.0
"""A night in a log is then 50 lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a server may be away in one go, and what is said where it is away for longer."""

    most: timedelta = DEFAULT
    goes_on: str = "What was begun there goes on."
    """A sentence: what becomes of what was waited for, and how to look at it."""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def ask_patiently(
    client: OpenAI,
    ask: Callable[[], T],
    *,
    patience: Patience | None = None,
    on_poll: Callable[[], None] = lambda: None,
) -> T:
    """Return what is answered; a server that does not answer, or cannot, is waited for and asked again.

    Says so on standard error. `on_poll` runs in between, and may raise to stop.
    Raises ServiceError where patience ends.
    """
    from openai import APIConnectionError, APIStatusError

    patience = patience or Patience()
    absence: _Absence | None = None
    while True:
        try:
            answer = ask()
        except (APIConnectionError, APIStatusError) as error:
            if isinstance(error, APIStatusError) and error.status_code < 500:
                raise
            absence = absence or _Absence(patience)
            absence.note(_why_away(client, error))
        else:
            if absence is not None:
                _say(f"{client.base_url} answers again")
            return answer
        on_poll()
        patience.sleep(_ASK_SECONDS)


class _Absence:
    """One time during which a server is away, from now on."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._began = self._say_at = patience.monotonic()

    def note(self, why: str) -> None:
        """Say now and then that the server is waited for. Raises ServiceError once that is over."""
        now, most = self._patience.monotonic(), self._patience.most
        left = most - timedelta(seconds=round(now - self._began))
        if left <= timedelta():
            raise ServiceError(f"{why}, for {spelled(most)} now. {self._patience.goes_on}") from None
        if now >= self._say_at:
            self._say_at = now + _SAY_SECONDS
            _say(f"{why}; waiting for it, up to {spelled(left)}")


def spelled(time_left: timedelta) -> str:
    """Return such as `1h`, `1h 30m` or `45s`."""
    seconds = round(time_left.total_seconds())
    parts = ((seconds // 3600, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return " ".join(f"{count}{unit}" for count, unit in parts if count) or "0s"


def _why_away(client: OpenAI, error: Exception) -> str:

    return f"{client.base_url} does not answer ({cause(error)})"


def _say(sentence: str) -> None:
    print(f"tokenmill: {sentence}", file=sys.stderr, flush=True)
