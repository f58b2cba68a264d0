"""One line's request to a server, and the leave to pay for it. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from workers.remote.calls.seats import Order
from workers.remote.reading import Awaited


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """Whether there is money to ask a line; both are called in a thread, as the answer may be in a database."""

    may_send: Callable[[], bool]
    """Called right before each request."""
    may_repeat: Callable[[], bool]
    """Called before a line is asked again after an answer that was paid for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One line's request."""

    path: str
    body: dict[str, Any]
    expected: Awaited
    order: Order
    seconds_left: float
    """Until the deadline of the line, when it is submitted."""
    adapter: str | None = None
    """The one that answers the line, by its name at the server; None: the model itself."""
    permit: Permit | None = None
    """For a line that costs money."""
    own_limit: str | None = None
    """The field of the body that limits the answer, if we chose it; None: the line did, or has no limit."""

    def shortened(self) -> Call | None:
        """Return the same call with half of our limit; None where there is none, or it is as small as can be."""
        if self.own_limit is None or self.body[self.own_limit] < 2:
            return None
        return replace(self, body=self.body | {self.own_limit: self.body[self.own_limit] // 2})
