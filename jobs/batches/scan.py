"""Scan a batch's input: read its lines in order, list every invalid one, plan the chunks of the others.

Pure: no SQL, no storage. Memory does not grow with the size of lines: per line only a digest of its custom_id is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from jobs.engines.engine import Known, missing
from jobs.lines.bodies import ChatRequest, CompletionRequest
from jobs.lines.endpoints import BY_PATH, LineKind, Request, kind_of, paths_of
from jobs.lines.filled_lines import is_to_be_filled, left_unfilled
from jobs.lines.identical import IdenticalLines
from jobs.lines.input_estimate import estimate_tokens
from jobs.lines.line_check import check_body
from jobs.lines.line_times import TURN_MILLISECONDS
from jobs.lines.needs import NOTHING, Need, needs_of, param_of
from jobs.lines.reading import (
    CustomIds,
    InputLine,
    LineProblem,
    RawLine,
    UnfilledLine,
    is_array,
    parse_line,
    shown,
    too_long_problem,
)
from jobs.settings import MIB, Settings

if TYPE_CHECKING:
    from jobs.served_adapters import Adapter

MAX_CHUNK_BYTES = 16 * MIB
"""A chunk of long lines ends early: a worker reads a chunk in one piece, and K chunks at a time."""
FILLING_LINES = 64
"""Lines per chunk that, times the chunks a worker keeps open, fill an engine's seats (256 on a GPU)."""
SHORT_CHUNK_TOKENS = 16_384
"""A chunk continues past FILLING_LINES while it is shorter than this, so that the fixed cost of a chunk is small beside
its lines: three transactions (claim, progress, end), and the pause until the next one is under way."""

PREPARE_LINES = 16
"""Most lines of a chunk of documents; fewer where they are expected to exceed a turn. Fair order counts them in
milliseconds instead of tokens."""


class PlannedChunk(NamedTuple):
    """A planned chunk; a named tuple, because a large batch has a hundred thousand of them."""

    first_line: int
    num_lines: int
    num_requests: int
    byte_start: int
    byte_end: int
    estimated_tokens: int
    copies: list[int] | None = None
    """As in `ChunkRef.copies`."""
    needs: int = 0
    """What its lines need of an engine: a sum of `Need`."""


class ChunkPlanner:
    """Group consecutive lines into chunks; each begins and ends with a valid line.

    A chunk has FILLING_LINES, more where they are short and fewer where they are long: at most `max_lines` and, except
    for a single line, `max_tokens` by estimate. Lines that no engine can run together are in chunks of their own.
    """

    def __init__(
        self, *, max_lines: int, max_tokens: int, is_runnable: Callable[[int], bool] = lambda needs: True
    ) -> None:
        """`is_runnable` tells whether one engine may meet all these needs."""
        self.chunks: list[PlannedChunk] = []
        self._max_lines = max_lines
        self._max_tokens = max_tokens
        self._is_runnable = is_runnable
        self._open: PlannedChunk | None = None
        self._num_skipped = 0  # invalid lines since the last valid one

    def add(self, line: RawLine, tokens: int, *, copy_of: int | None = None, needs: int = 0) -> None:
        """Plan a valid line; `copy_of` is the earlier line whose answer it may share."""
        chunk = self._open
        if chunk is None or not self._fits(chunk, line, tokens) or not self._fits_engine(chunk, needs):
            self._close()
            self._open = PlannedChunk(line.line_no, 1, 1, line.byte_start, line.byte_end, tokens, needs=needs)
        else:
            self._open = chunk._replace(
                num_lines=line.line_no - chunk.first_line + 1,
                num_requests=chunk.num_requests + self._num_skipped + 1,
                byte_end=line.byte_end,
                estimated_tokens=chunk.estimated_tokens + tokens,
                needs=chunk.needs | needs,
            )
        self._num_skipped = 0
        if copy_of is not None:
            self._note_copy(line.line_no, copy_of)

    def _note_copy(self, line_no: int, copy_of: int) -> None:
        assert self._open is not None, "a line was added"
        if self._open.copies is None:
            self._open = self._open._replace(copies=[])
        assert self._open.copies is not None
        self._open.copies.extend((line_no, copy_of))

    def skip(self) -> None:
        """Record an invalid line: inside a chunk it counts as a request that already has its result."""
        self._num_skipped += 1

    def finish(self) -> list[PlannedChunk]:
        """Close the open chunk and return those that were not popped."""
        self._close()
        return self.chunks

    def pop_closed(self) -> list[PlannedChunk]:
        """Return the closed chunks and drop them."""
        closed, self.chunks = self.chunks, []
        return closed

    def _close(self) -> None:
        if self._open is not None:
            self.chunks.append(self._open)
            self._open = None

    def _fits_engine(self, chunk: PlannedChunk, needs: int) -> bool:
        together = chunk.needs | needs
        return together in (chunk.needs, needs) or self._is_runnable(together)

    def _fits(self, chunk: PlannedChunk, line: RawLine, tokens: int) -> bool:
        num_lines, num_tokens = line.line_no - chunk.first_line, chunk.estimated_tokens + tokens
        max_lines = self._max_lines if num_tokens <= SHORT_CHUNK_TOKENS else min(self._max_lines, FILLING_LINES)
        is_short = line.byte_end - chunk.byte_start <= MAX_CHUNK_BYTES and num_tokens <= self._max_tokens
        return is_short and num_lines < max_lines


@dataclass(slots=True)
class Scan:
    """State of a scan in the order of lines."""

    endpoint: str
    models: Collection[str]
    settings: Settings
    contexts: Mapping[str, int] = field(default_factory=dict)
    """Context lengths of the models that a worker serves now."""
    kinds: Mapping[str, LineKind] = field(default_factory=dict)
    """Line kinds of the offered models, including those for other endpoints."""
    line_milliseconds: int = 1
    """Expected reading time of each line, where the lines are documents to prepare."""
    is_retry: bool = False
    """Whether the lines were accepted once, with whatever custom_id was allowed then."""
    is_filled: bool = False
    """Whether a feature has filled the input: lines that it could not fill, or that no longer fit, fail alone."""
    identical: IdenticalLines = field(default_factory=IdenticalLines)
    engines: Mapping[str, Sequence[Known]] = field(default_factory=dict)
    """By model, the engines that have served it: a line that none of them can run is a problem."""
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    planner: ChunkPlanner = field(init=False)
    model: str | None = None  # of the batch: the first known one
    num_requests: int = 0
    num_problems: int = 0
    problem_bytes: int = 0  # of the invalid lines
    num_copies: int = 0
    num_to_fill: int = 0  # valid lines that do not run before they are filled
    num_filled: int = 0
    num_unfilled: int = 0  # of a filled input
    is_array: bool = False  # one JSON array instead of lines: listed once, by its first line
    needs: Need = NOTHING  # of all planned lines
    listed: list[dict[str, Any]] = field(default_factory=list)
    _ids: CustomIds = field(default_factory=CustomIds)

    def __post_init__(self) -> None:
        usual, most_tokens = self.settings.chunk_lines, self.settings.chunk_tokens
        if self._is_prepared:
            usual, most_tokens = PREPARE_LINES, TURN_MILLISECONDS
        most = BY_PATH[self.endpoint].max_chunk_lines or usual
        self.planner = ChunkPlanner(max_lines=most, max_tokens=most_tokens, is_runnable=self._is_runnable)

    @property
    def adapter(self) -> Adapter | None:
        """Return the adapter that the lines name; None where they name a model with workers of its own."""
        return self.adapters.get(self.model or "")

    @property
    def queue(self) -> str | None:
        """Return the model whose workers run the lines."""
        return self.model if self.adapter is None else self.adapter.base

    def named(self) -> dict[str, str | None]:
        """Return the columns of the batch for the model that its lines name."""
        if self.adapter is None:
            return {"model": self.model}
        return {"model": self.queue, "adapter": self.model, "server_model": self.adapter.server_model}

    @property
    def _is_prepared(self) -> bool:
        return kind_of(self.endpoint) is LineKind.PREPARE

    def check(self, line: RawLine) -> LineProblem | None:
        """Return the problem of the next line; None where it is planned into a chunk or exceeds the allowed lines."""
        self.num_requests += 1
        if self.num_requests > self.settings.max_batch_lines:
            return None  # the batch fails as a whole; only the count matters now
        try:
            request, parsed = self.checked(line)
        except UnfilledLine as problem:
            self.num_unfilled += 1
            self.planner.skip()
            return problem
        except LineProblem as problem:
            self._note(problem, line)
            return problem
        self.num_to_fill += is_to_be_filled(parsed)
        self.num_filled += request.context is not None
        copy_of = self.identical.add(request, line.content or b"", parsed)
        self._plan(line, request.body, copy_of=copy_of, needs=_needs_of(parsed))
        return None

    def checked(self, line: RawLine) -> tuple[InputLine, Request]:
        """Return the next line, which is valid, and its parsed body. Raises LineProblem."""
        if line.content is None:
            raise too_long_problem(line, max_line_bytes=self.settings.max_line_bytes)
        request = parse_line(line.content, line_no=line.line_no, endpoint=self.endpoint, is_filled=self.is_filled)
        self._check_custom_id(request)
        self._check_model(request)
        parsed = self._parsed(request, line.content)
        self._check_needs(request, parsed)
        if self.is_filled and is_to_be_filled(parsed):
            raise left_unfilled(request)
        return request, parsed

    def file_problem(self) -> dict[str, Any] | None:
        """Return the problem of the file as a whole, which fails the batch in any case."""
        allowed = self.settings.max_batch_lines
        if self.num_requests == 0:
            return whole_file_problem("empty_file", "the input file has no requests; write one JSON object a line")
        if self.num_requests > allowed:
            message = f"the input file has {self.num_requests} requests and {allowed} are allowed; split it"
            return whole_file_problem("too_many_tasks", message)
        return None

    def _plan(self, line: RawLine, body: Mapping[str, Any], *, copy_of: int | None, needs: Need) -> None:
        assert line.content is not None, "a line that is too long is a problem"
        tokens = self.line_milliseconds
        if not self._is_prepared:
            tokens = estimate_tokens(line.content, body, default_max_tokens=self.settings.default_max_tokens)
        self.planner.add(line, tokens, copy_of=copy_of, needs=int(needs))
        self.needs |= needs
        self.num_copies += copy_of is not None

    def _parsed(self, request: InputLine, content: bytes) -> Request:
        try:
            return check_body(request, content, endpoint=self.endpoint, max_model_len=self.contexts.get(request.model))
        except LineProblem as problem:
            if request.context is None:
                raise
            raise UnfilledLine.of(problem) from None  # it was valid before it was filled

    def _check_custom_id(self, request: InputLine) -> None:
        num_characters, allowed = len(request.custom_id), self.settings.max_custom_id_characters
        if num_characters > allowed and not self.is_retry:
            message = f"custom_id has {num_characters:,} characters and {allowed:,} are allowed; shorten it"
            raise _problem(request, "invalid_request", message, param="custom_id")
        first = self._ids.add(request.custom_id, request.line_no)
        if first is not None:
            message = f"custom_id {shown(request.custom_id)} is used by line {first + 1} already; make every one unique"
            raise _problem(request, "duplicate_custom_id", message, param="custom_id")

    def _check_needs(self, line: InputLine, parsed: Request) -> None:
        if self.engines and isinstance(parsed, (ChatRequest, CompletionRequest)):
            engines = self.engines.get(line.model, ())
            lacking = missing(needs_of(parsed), engines)
            if lacking:
                raise _not_offered(line, param_of(parsed, lacking), lacking, engines)

    def _is_runnable(self, needs: int) -> bool:
        return not missing(Need(needs), self.engines.get(self.model or "", ()))

    def _check_model(self, request: InputLine) -> None:
        if request.model == self.model:
            return
        kind = self.kinds.get(request.model)
        if request.model not in self.models and kind is not None:
            message = (
                f"the model {shown(request.model)} answers {' and '.join(paths_of(kind))}, and this batch is for "
                f"{self.endpoint}; name another model, or send these lines there"
            )
            raise _problem(request, "model_not_supported", message, param="body.model")
        if request.model not in self.models:
            known = ", ".join(sorted(self.models)[:10]) or "none yet"
            message = f"the model {shown(request.model)} does not exist; known are: {known}"
            raise _problem(request, "model_not_found", message, param="body.model")
        if self.model is not None:
            message = (
                f"the model is {shown(request.model)} and earlier lines name {shown(self.model)}; "
                "put each model into its own batch"
            )
            raise _problem(request, "model_mismatch", message, param="body.model")
        self.model = request.model

    def _note(self, problem: LineProblem, line: RawLine) -> None:
        self.planner.skip()
        self.num_problems += 1
        self.problem_bytes += line.byte_end - line.byte_start
        self.is_array = self.is_array or (line.line_no == 0 and is_array(line.content))
        if self.is_array and self.listed:
            return
        if len(self.listed) < self.settings.max_listed_errors:
            self.listed.append(problem.wire())


def too_many_invalid(num_invalid: int, *, num_requests: int, settings: Settings) -> dict[str, Any] | None:
    """Return the problem of a file with more invalid lines than may be skipped."""
    allowed = allowed_problems(num_requests, settings)
    if num_invalid <= allowed:
        return None
    message = (
        f"{num_invalid} of {num_requests} lines are invalid and {allowed} are allowed where they are "
        f"skipped ({settings.max_invalid_lines}, or a tenth of the lines); correct the file"
    )
    return whole_file_problem("too_many_invalid_lines", message)


def allowed_problems(num_requests: int, settings: Settings) -> int:
    """Return how many invalid lines may be skipped.

    An invalid line costs its tenant nothing and leaves an error of 200 bytes: valid ones, which cost, must outweigh it.
    """
    return max(settings.max_invalid_lines, num_requests // 10)


def whole_file_problem(code: str, message: str) -> dict[str, Any]:
    """Return an entry of `errors.data` that concerns no single line."""
    return {"code": code, "message": message, "param": None, "line": None}


def _needs_of(parsed: Request) -> Need:
    return needs_of(parsed) if isinstance(parsed, (ChatRequest, CompletionRequest)) else NOTHING


def _not_offered(line: InputLine, param: str, lacking: Need, engines: Sequence[Known]) -> LineProblem:
    asked = ", ".join(engine.label for engine in engines)
    name = lacking.names()[0]
    what = param if param == name else f"{param} ({name})"
    message = (
        f"{what} is offered by no engine that serves the model {shown(line.model)} (asked: {asked}); leave it out, or "
        "have the model served by an engine that offers it"
    )
    return _problem(line, "unsupported_parameter", message, param=f"body.{param}")


def _problem(request: InputLine, code: str, message: str, *, param: str) -> LineProblem:
    return LineProblem(code, message, line_no=request.line_no, param=param, custom_id=request.custom_id)
