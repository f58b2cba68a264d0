"""What answers the lines of chunks: an engine of ours, an encoder, readers of documents, an engine elsewhere.

A worker has one `Answerer`, which opens `ChunkLines` for each claimed chunk. `ChunkRun` does what is the same for all:
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

from jobs.chunks import leasing
from jobs.chunks.fleet import RunningLines
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.decisions import Kind
from jobs.lines.reading import RawLine
from workers.chunks.line_results import FailureMaker

LONG_LINE_BYTES = 64 * 1024
"""From here on a line is prepared beside the thread that holds the lease, and where there is room for it: a context of
100,000 tokens takes seconds to tokenise. A shorter line is not worth another thread."""
GROUP_LINES = 16
"""Lines that are submitted together, where nothing is to be covered: fewer messages, less processor time."""
GROUP_SECONDS = 0.02
"""How long the first of them waits for others, at most, and for the end of what is being prepared."""

Output = Sequence[int]
"""Tokens that an earlier worker left of a line; empty where a broken row has ended the line there."""
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
        """Return for how many tokens the line may be billed, at most: its prompts and its answers."""


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
    """Make its result; called once, in the thread of the chunk.

    Raises ServiceError where the line may have a result later or on another worker: then the rest of the chunk is given
    back. Any other exception fails the line alone.
    """
    events: Callable[[], Sequence[tuple[str, float]]] = tuple
    """Return what happened to it, for its span: names and seconds since the epoch."""

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

    All methods are called from the chunk's thread, but `prepare` of a long line: from one beside it.
    """

    fingerprint: str | None = None
    """Of the model whose output for unfinished lines is kept for the next worker; None: nothing is kept."""
    long_line_bytes: float = LONG_LINE_BYTES
    """Lines of so many bytes take long to prepare."""
    group_lines: int = GROUP_LINES
    group_seconds: float = GROUP_SECONDS
    may_put_off: bool = False

    def __init__(self, claim: ClaimedChunk, failures: FailureMaker) -> None:
        self.claim = claim
        """The chunk, with the prices of what answers it."""
        self.failures = failures

    # --- what every answerer does ---

    @abstractmethod
    def prepare(self, raw: RawLine, *, is_wanted: Callable[[], bool], room: Room) -> L:
        """Make a line ready to be submitted. Raises BodyError where it cannot be run; anything else fails it for good.

        Soon after `is_wanted` says so it raises Unwanted. `room` is held while much memory is needed.
        """

    @abstractmethod
    def submit(
        self, lines: Sequence[tuple[L, Output | None]], on_end: Callable[[Ended[L]], None]
    ) -> Mapping[int, Exception]:
        """Begin to answer lines, each after the output that is kept of it, if any.

        `on_end` may be called from any thread, once a line. Returns, by line number, why some cannot be submitted.
        """

    @abstractmethod
    def drop(self, line_no: int) -> None:
        """Forget a submitted line, and abort what is still computed of it, which may be nothing."""

    @abstractmethod
    def drop_all(self) -> Mapping[int, Output]:
        """Forget and abort every line; return, by line number, what the next worker may go on from."""

    # --- what some do ---

    def opened(self) -> AbstractContextManager[None]:
        """Return what is entered while the chunk runs."""
        return nullcontext()

    def put_off(self, session: Session, claim: ClaimedChunk) -> str | None:
        """Put the chunk off before anything of it is read, and return why; None where it is to run.

        Asked where `may_put_off`. Raises FencedOutError.
        """
        return None

    def begin(self, session: Session, claim: ClaimedChunk) -> None:
        """Note that lines are submitted from now on: a lost lease counts against them. Raises FencedOutError."""
        leasing.start(session, claim)

    def admit(self, lines: Sequence[L]) -> Sequence[bool]:
        """Return which lines there is room for now; they hold it until `leave`."""
        return [True] * len(lines)

    def leave(self, line_nos: Sequence[int]) -> None:
        """Give back the room of lines whose results are written, or which no budget covers."""

    def is_room_scarce(self, line_no: int) -> bool:
        """Tell whether others wait for the room of a line that has ended: its result is written at once."""
        return False

    def wait_for_room(self, timeout_seconds: float) -> None:
        """Wait until there may be room for a line that was not admitted."""

    @property
    def is_wedged(self) -> bool:
        """Tell whether lines are being answered and nothing has moved for too long: the lease is left to end."""
        return False

    def estimate_left(self, num_left: int) -> int:
        """Estimate so many lines that are left for another turn, in the unit of the chunk's estimate."""
        return self.claim.estimated_tokens * num_left // self.claim.num_requests

    def pop_microseconds(self) -> int:
        """Return the chunk's share of the worker's time since it was last asked for."""
        return 0

    def pop_decisions(self, *, is_last: bool) -> Mapping[Kind, int]:
        """Return what was decided of lines, for their batch's owner to read, since it was last asked for."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What an answerer does now, for the fleet."""

    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Numbers by name, as the heartbeat tells them."""
    running_lines: Mapping[str, RunningLines] = field(default_factory=dict)
    """By batch."""


class Answerer(Protocol):
    """What answers lines in one worker. `start` and `close` are called once; `open` from several threads."""

    def start(self, *, is_busy: Callable[[], bool]) -> int:
        """Get ready; return the longest context in tokens, 0 where there is none. Raises ServiceError and the like.

        `is_busy` tells whether a chunk is open.
        """

    def open(self, claim: ClaimedChunk) -> ChunkLines[Any]:
        """Return the lines of a claimed chunk, none of which is submitted."""

    def stats(self) -> Stats:
        """Return what it does now."""

    def drain(self) -> None:
        """Begin nothing more beside the open chunks."""

    def close(self) -> None:
        """End everything; the drain has begun and no chunk is open."""
