"""The interface that answers the lines of chunks: our engine, an encoder, document readers, a remote engine.

A worker has one `Answerer`, which opens `ChunkLines` for each claimed chunk. `ChunkRun` does the part common to all:
it holds the lease, covers budgets, submits lines, writes their results, and ends the chunk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy.orm import Session

from jobs.accounts.spill_days import NOTHING_SPENT, Spent
from jobs.chunks import leasing
from jobs.chunks.fleet import RunningLines
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import NOTHING_WASTED, LineResult, Wasted
from jobs.decisions import Kind
from jobs.engines.engine import OWN_ENGINE, ServingEngine
from jobs.lines.reading import RawLine
from workers.chunks.line_results import FailureMaker

LONG_LINE_BYTES = 64 * 1024
"""Size from which a line is prepared outside the thread that holds the lease, and only when there is room: a context
of 100,000 tokens takes seconds to tokenise. A shorter line is not worth another thread."""
GROUP_LINES = 16
"""Lines submitted together when no budget needs covering: fewer messages, less processor time."""
GROUP_SECONDS = 0.02
"""Longest time the first of them waits for others, and for a line that is being prepared."""

Output = Sequence[int]
"""Tokens of a line that an earlier worker left; empty if a broken row ended the line there."""
Room = Callable[[], AbstractContextManager[None]]


class Line(Protocol):
    """A line that is ready to be submitted."""

    @property
    def line_no(self) -> int: ...

    @property
    def custom_id(self) -> str: ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def most_tokens(self) -> int:
        """Return the most tokens that the line may be billed for: its prompts and its answers."""


L = TypeVar("L", bound=Line)


class Unanswered(Enum):
    """Why a line that has ended has no result."""

    AGAIN = "it is to be submitted again, without the output of an earlier worker"
    LEFT = "it is left for another turn of the chunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Generic[L]):
    """A submitted line that has ended."""

    line: L
    make: Callable[[], LineResult | Unanswered]
    """Make its result; called once, in the chunk's thread.

    Raise ServiceError if the line may have a result later or on another worker: then the rest of the chunk is released.
    Any other exception fails only this line.
    """
    events: Callable[[], Sequence[tuple[str, float]]] = tuple
    """Return its events for the trace span: names and seconds since the epoch."""

    @classmethod
    def by(cls, line: L, outcome: LineResult | Unanswered | Exception) -> Ended[L]:
        """Return the end of a line whose outcome is known."""

        def make() -> LineResult | Unanswered:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return cls(line=line, make=make)


class ChunkLines(ABC, Generic[L]):
    """The lines of one claimed chunk at an answerer.

    All methods are called from the chunk's thread, except `prepare` for a long line, which runs in another one.
    """

    fingerprint: str | None = None
    """Fingerprint of the model, for output of unfinished lines that is kept for the next worker; None keeps nothing."""
    long_line_bytes: float = LONG_LINE_BYTES
    """Size from which lines take long to prepare."""
    group_lines: int = GROUP_LINES
    group_seconds: float = GROUP_SECONDS
    may_put_off: bool = False
    engine: ServingEngine = OWN_ENGINE
    """What answers: only answers of its kind and data type are shared by identical lines."""

    def __init__(self, claim: ClaimedChunk, failures: FailureMaker) -> None:
        self.claim = claim
        """The chunk, with the prices of its answerer."""
        self.failures = failures

    # --- for every answerer ---

    @abstractmethod
    def prepare(self, raw: RawLine, *, is_wanted: Callable[[], bool], room: Room) -> L:
        """Prepare a line for submission. Raise BodyError if it cannot be run; any other error fails it for good.

        Raise Unwanted soon after `is_wanted` returns False. `room` is held while much memory is needed.
        """

    @abstractmethod
    def submit(
        self, lines: Sequence[tuple[L, Output | None]], on_end: Callable[[Ended[L]], None]
    ) -> Mapping[int, Exception]:
        """Start answering lines, each from its kept output, if any.

        `on_end` is called once per line, from any thread. Return by line number the errors of lines that cannot be
        submitted.
        """

    @abstractmethod
    def drop(self, line_no: int) -> None:
        """Drop a submitted line, and abort what is still computed of it, if anything."""

    @abstractmethod
    def drop_all(self) -> Mapping[int, Output]:
        """Drop and abort every line; return, by line number, the output that the next worker may resume from."""

    # --- for some answerers ---

    def opened(self) -> AbstractContextManager[None]:
        """Return a context that is entered while the chunk runs."""
        return nullcontext()

    def put_off(self, session: Session, claim: ClaimedChunk) -> str | None:
        """Put the chunk off before any of it is read, and return why; None if it is to run.

        Called only if `may_put_off`. Raise FencedOutError.
        """
        return None

    def begin(self, session: Session, claim: ClaimedChunk) -> None:
        """Record that lines are submitted from now on, so that a lost lease counts against them.

        Raise FencedOutError.
        """
        leasing.start(session, claim)

    def admit(self, lines: Sequence[L]) -> Sequence[bool]:
        """Return for each line whether there is room for it now; it is held until `leave`."""
        return [True] * len(lines)

    def leave(self, line_nos: Sequence[int]) -> None:
        """Release the room of lines whose results are written or that no budget covers."""

    def is_room_scarce(self, line_no: int) -> bool:
        """Tell whether others wait for the room of an ended line, so that its result is written at once."""
        return False

    def wait_for_room(self, timeout_seconds: float) -> None:
        """Wait until there may be room for a line that was not admitted."""

    @property
    def is_wedged(self) -> bool:
        """Tell whether running lines have made no progress for too long, so that the lease is left to expire."""
        return False

    def estimate_left(self, num_left: int) -> int:
        """Estimate `num_left` lines that are left for another turn, in the unit of the chunk's estimate."""
        return self.claim.estimated_tokens * num_left // self.claim.num_requests

    def pop_microseconds(self) -> int:
        """Return the chunk's share of the worker's time since the last call."""
        return 0

    def pop_wasted(self) -> Wasted:
        """Return what was thrown away of a server's answers since the last call, for the operator to read."""
        return NOTHING_WASTED

    def pop_spent(self) -> Spent:
        """Return what a server outside the house was paid since the last call."""
        return NOTHING_SPENT

    @property
    def has_paid(self) -> bool:
        """Tell whether `pop_wasted` or `pop_spent` would return anything."""
        return False

    def pop_decisions(self, *, is_last: bool) -> Mapping[Kind, int]:
        """Return counts of the decisions on lines since the last call, for their batch's owner to read."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The current state of an answerer, for the fleet."""

    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Numbers by name, in the form of the heartbeat."""
    running_lines: Mapping[str, RunningLines] = field(default_factory=dict)
    """By batch."""
    away_reason: str | None = None
    """Why no line can be answered at the moment, so that nothing is claimed."""
    engine: ServingEngine = OWN_ENGINE
    """What answers, as of now: only chunks that it can run are claimed."""


class Answerer(Protocol):
    """Answers the lines of one worker. `start` and `close` are called once; `open` from several threads."""

    def start(self, *, is_busy: Callable[[], bool]) -> int:
        """Get ready; return the longest context in tokens, 0 if there is none. Raise ServiceError or similar.

        `is_busy` tells whether a chunk is open.
        """

    def open(self, claim: ClaimedChunk) -> ChunkLines[Any]:
        """Return the lines of a claimed chunk, none of them submitted."""

    def stats(self) -> Stats:
        """Return the current state."""

    def drain(self) -> None:
        """Start nothing more beyond the open chunks."""

    def close(self) -> None:
        """End everything; the drain has begun and no chunk is open."""
