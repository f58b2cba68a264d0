"""Retries calls to a server that is unreachable for a while, such as during a restart."""

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
"""At this interval a night is 50 lines of a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a server may be unreachable at a time, and the message if it stays away longer."""

    most: timedelta = DEFAULT
    goes_on: str = "What was started there continues."
    """A sentence for when patience ends: what continues, and how to follow it."""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def ask_patiently(
    client: OpenAI,
    ask: Callable[[], T],
    *,
    patience: Patience | None = None,
    on_poll: Callable[[], None] = lambda: None,
) -> T:
    """Return the result of `ask`; retry it while the server is unreachable or answers 5xx.

    Reports that on standard error. `on_poll` runs between tries, and may raise to stop.
    Raises ServiceError if the server stays away longer than `patience.most`.
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
    """One outage of a server, from now on."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._began = self._say_at = patience.monotonic()

    def note(self, why: str) -> None:
        """Report the wait now and then. Raises ServiceError once the time is over."""
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
