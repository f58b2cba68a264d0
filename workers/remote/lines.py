"""The lines of one chunk that a server answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jobs.accounts.spill_days import Spent
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import NOTHING_WASTED, LineResult, Wasted
from jobs.engines.engine import ServingEngine
from jobs.errors import ServiceError
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.body_checks import BodyError
from jobs.lines.output_lines import output_line, response_id
from jobs.lines.reading import RawLine
from jobs.states import Priority
from workers.chunks.answerer import ChunkLines, Ended, Output, Room, Unanswered
from workers.chunks.ends import STALL_SECONDS
from workers.chunks.engine_lines import ENGINE_PRIORITY
from workers.chunks.line_results import FailureMaker
from workers.chunks.services import Services
from workers.chunks.worker_time import ChunkTime, WorkerTime
from workers.remote.abilities import Abilities
from workers.remote.answers import Billed, billed, body_of
from workers.remote.calls.call import Call
from workers.remote.calls.caller import Caller
from workers.remote.calls.outcomes import Outcome
from workers.remote.identity import Identity
from workers.remote.line_requests import LineRequests, RemoteLine
from workers.remote.pooled import PoolRequest, pool_answer
from workers.remote.sizes import Sizes
from workers.remote.spending import Spending, SpillSpending
from workers.remote.verdicts import Answered, Away, Counts, Refused, Spoilt, Unloaded, Unpaid

log = logging.getLogger(__name__)

NO_COUNT = (
    "the server's answer has no usable count of its tokens, and this worker has no tokenizer to count them; start it "
    "with --tokenizer"
)

OnEnd = Callable[[Ended["RemoteLine"]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteParts:
    """One server and the services around it."""

    services: Services
    caller: Caller
    identity: Identity
    abilities: Abilities
    """What the server's engine is and does, as of now."""
    sizes: Sizes
    answers_as: str
    """The name in the server's answers."""
    worker_time: WorkerTime = field(default_factory=WorkerTime)

    @property
    def engine(self) -> ServingEngine:
        return self.abilities.engine

    def spending_of(self, claim: ClaimedChunk) -> Spending:
        """Return what a chunk's lines may cost."""
        spill = self.engine.spill
        return Spending() if spill is None else SpillSpending(claim, spill, self.services.sessions)


class RemoteLines(ChunkLines[RemoteLine]):
    """Submits lines to the caller that all chunks of a worker share, and makes results of its outcomes."""

    def __init__(self, claim: ClaimedChunk, parts: RemoteParts, *, number: int) -> None:
        """`number`: chunks that were opened earlier are asked first, within their class."""
        super().__init__(claim, FailureMaker(claim.batch_id))
        self._parts = parts
        self._number = number
        self.engine = parts.abilities.engine
        self._requests = LineRequests(
            claim=claim,
            engine=self.engine,  # as at the claim, which took only lines that it can answer
            identity=parts.identity,
            sizes=parts.sizes,
            answers_as=parts.answers_as,
        )
        self._keys: dict[int, object] = {}  # calls of unfinished lines, by line_no
        self._time = ChunkTime()
        self._wasted = NOTHING_WASTED
        self._spending = parts.spending_of(claim)
        self._created = int(time.time())
        self._is_chat = claim.endpoint == CHAT_ENDPOINT

    @contextmanager
    def opened(self) -> Iterator[None]:
        with self._parts.worker_time.divided_with(self._time):
            yield

    def prepare(self, raw: RawLine, *, is_wanted: Callable[[], bool], room: Room) -> RemoteLine:
        return self._requests.of(raw, is_wanted=is_wanted, room=room)

    # --- the server ---

    def submit(self, lines: Sequence[tuple[RemoteLine, Output | None]], on_end: OnEnd) -> Mapping[int, Exception]:
        try:
            fits = self._spending.reserve([line for line, _ in lines])
        except ServiceError as error:
            for line, _ in lines:
                on_end(Ended.by(line, error))
            return {}
        for (line, _), has_room in zip(lines, fits, strict=True):
            if has_room:
                key = self._keys[line.line_no] = object()
                self._parts.caller.submit(key, self._call(line), partial(self._end, line, on_end))
            else:
                on_end(Ended.by(line, Unanswered.LEFT))
        return {}

    def _call(self, line: RemoteLine) -> Call:
        priority = ENGINE_PRIORITY[Priority(self.claim.priority)]
        return Call(
            path=line.path,
            body=line.body,
            expected=line.expected,
            order=(priority, self._number, line.prefix, line.line_no),
            seconds_left=max(0.0, self.claim.expires_at.timestamp() - time.time()),
            adapter=self.claim.server_model,
            permit=self._spending.permit(line),
            own_limit=line.own_limit,
        )

    def _end(self, line: RemoteLine, on_end: OnEnd, outcome: Outcome) -> None:
        if isinstance(outcome.verdict, Answered):
            counts = outcome.verdict.counts
            self._time.note(1 if counts is None else 1 + counts.completion_tokens)
        on_end(Ended(line=line, make=partial(self._made, line, outcome)))

    def drop(self, line_no: int) -> None:
        key = self._keys.pop(line_no, None)
        if key is not None:
            self._parts.caller.cancel([key])

    def drop_all(self) -> Mapping[int, Output]:
        keys, self._keys = self._keys, {}
        if keys:
            self._spending.drop(self._parts.caller, keys)
        return {}

    @property
    def num_open(self) -> int:
        """Return how many lines wait for the server or run there."""
        return len(self._keys)

    @property
    def is_wedged(self) -> bool:
        return self._parts.caller.seconds_silent() > STALL_SECONDS

    # --- results ---

    def _made(self, line: RemoteLine, outcome: Outcome) -> LineResult | Unanswered:
        verdict = outcome.verdict
        self._wasted = sum(map(_wasted, outcome.wasted), start=self._wasted)
        self._spending.settle(line, outcome)
        match verdict:
            case Answered():
                return self._answer(line, verdict)
            case Refused():
                error = BodyError(verdict.param, verdict.message, code=verdict.code)
                return self.failures.refusal(line.line_no, line.custom_id, error)
            case Spoilt():
                message = f"{verdict.reason}. It was asked several times, and other lines are answered."
                return self.failures.failure(line.line_no, line.custom_id, message=message)
            case Away():
                raise ServiceError(verdict.reason)
            case Unloaded():
                log.warning("the server has lost an adapter name=%s", verdict.adapter)
                self._parts.abilities.lose_adapter(verdict.adapter)
                return Unanswered.LEFT
            case Unpaid():
                return Unanswered.LEFT

    def _answer(self, line: RemoteLine, answer: Answered) -> LineResult:
        parts, batch_id = self._parts, self.claim.batch_id
        count = billed(answer, line.size, parts.sizes)
        if count is None:
            return self.failures.failure(line.line_no, line.custom_id, message=NO_COUNT)
        if line.pooled is not None:
            try:
                return self._result(line, self._pool_body(line.pooled, line.line_no, answer, count), count)
            except BodyError as error:
                return self.failures.refusal(line.line_no, line.custom_id, error)
        body = body_of(
            answer,
            count,
            response_id=response_id("chatcmpl" if self._is_chat else "cmpl", batch_id, line.line_no),
            is_chat=self._is_chat,
            created=self._created,
            model=self.claim.named_model,
            engine=parts.engine,
            context=line.context,
        )
        return self._result(line, body, count)

    def _pool_body(self, request: PoolRequest, line_no: int, answer: Answered, count: Billed) -> Mapping[str, Any]:
        parts = self._parts
        body = pool_answer(
            request,
            answer.body,
            response_id=response_id("rerank", self.claim.batch_id, line_no),
            model=self.claim.named_model,
            num_tokens=count.usage.prompt_tokens,
        )
        return body | {"engine": parts.engine.wire()}

    def _result(self, line: RemoteLine, body: Mapping[str, Any], count: Billed) -> LineResult:
        return LineResult(
            line_no=line.line_no,
            status_code=200,
            line=output_line(self.claim.batch_id, line.line_no, line.custom_id, status_code=200, body=body),
            input_tokens=count.usage.prompt_tokens,
            cached_tokens=count.usage.cached_tokens,
            output_tokens=count.usage.completion_tokens,
            reasoning_tokens=count.usage.reasoning_tokens,
            is_truncated=any(choice["finish_reason"] == "length" for choice in body.get("choices", ())),
        )

    def pop_microseconds(self) -> int:
        return self._parts.worker_time.take(self._time)

    def pop_wasted(self) -> Wasted:
        wasted, self._wasted = self._wasted, NOTHING_WASTED
        return wasted

    def pop_spent(self) -> Spent:
        return self._spending.pop()

    @property
    def has_paid(self) -> bool:
        return bool(self._wasted) or self._spending.is_any


def _wasted(counts: Counts) -> Wasted:
    return Wasted(input_tokens=counts.prompt_tokens, output_tokens=counts.completion_tokens)
