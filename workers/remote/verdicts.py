"""What a server's reaction means for the line that it was asked. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tokens of one answer, as the server counted them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int | None = None
    """Of thoughts among the completion's; None: not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer, complete and of this line."""

    body: Mapping[str, Any]
    """As the server sent it; its choices are in order."""
    counts: Counts | None
    """None: the server gave none that can be true."""
    excess: Counts | None = None
    """What it counted above the line's bounds: nobody is billed for it, but a vendor may want to be paid for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The line is at fault: its result is this error."""

    status_code: int
    message: str
    code: str
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoilt:
    """No usable answer, perhaps because of the line: it is asked again, and then fails alone."""

    reason: str
    paid: Counts | None = None
    """What the server counted for the answer that is thrown away."""
    excess: Counts | None = None
    """As in `Answered`."""
    is_lasting: bool = False
    """Whether the server will react so to the same request again: a whole 200 that is no answer, an odd status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The server has no room at the moment: all lines wait, and no attempt is counted."""

    reason: str
    retry_after_seconds: float | None = None
    may_have_computed: bool = False
    """Whether somebody behind a gateway may have computed an answer, to be paid for, that came too late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """A status by which a server denies every line, or this one alone: a check request tells."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """The server answers no line as it is now: none is asked until it does."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpaid:
    """There is no money to ask the line, or to ask it again: it is left to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """The server has lost the line's adapter and answers others: the line is left to others."""

    adapter: str


Verdict = Answered | Refused | Spoilt | Busy | Denied | Away
