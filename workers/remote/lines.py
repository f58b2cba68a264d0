"""The lines of one chunk that a server answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import NOTHING_WASTED, LineResult, Wasted
from jobs.errors import ServiceError
from jobs.lines.bodies import CHAT_ENDPOINT, ChatRequest, CompletionRequest
from jobs.lines.body_checks import BodyError
from jobs.lines.embedding_bodies import EmbeddingRequest
from jobs.lines.endpoints import parse_request
from jobs.lines.needs import Need
from jobs.lines.output_lines import output_line, response_id
from jobs.lines.reading import InputLine, RawLine, parse_line
from jobs.lines.rerank_bodies import RerankRequest
from jobs.states import Priority
from workers.chunks.answerer import ChunkLines, Ended, Output, Room, Unanswered
from workers.chunks.ends import STALL_SECONDS
from workers.chunks.engine_lines import ENGINE_PRIORITY
from workers.chunks.line_results import FailureMaker
from workers.chunks.services import Services
from workers.chunks.worker_time import ChunkTime, WorkerTime
from workers.prompts import derived_seed
from workers.remote.abilities import Abilities
from workers.remote.answers import Billed, Engine, billed, body_of
from workers.remote.caller import Call, Caller, Outcome
from workers.remote.identity import Identity
from workers.remote.pooled import EMBEDDINGS, RERANK, PoolExpected, PoolRequest, num_items, pool_answer, pool_body
from workers.remote.reading import Awaited, Expected
from workers.remote.requests import Request, require_honest, require_needs, tokens_of
from workers.remote.requests import body_of as request_body
from workers.remote.sizes import Size, Sizes
from workers.remote.verdicts import Answered, Away, Counts, Refused, Spoilt

PREFIX_CHARACTERS = 512
"""Characters of a prompt by which lines are put next to each other."""

NO_COUNT = (
    "the server's answer has no usable count of its tokens, and this worker has no tokenizer to count them; start it "
    "with --tokenizer"
)

OnEnd = Callable[[Ended["RemoteLine"]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLine:
    """A line that is ready to be asked."""

    line_no: int
    custom_id: str
    body: dict[str, Any]
    """As it is sent."""
    size: Size
    path: str
    expected: Awaited
    prefix: str
    pooled: PoolRequest | None = None
    """Its request, if vectors or scores are to be made of its answer."""
    context: Mapping[str, Any] | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return self.size.num_prompt_tokens

    @property
    def most_tokens(self) -> int:
        return self.size.num_prompt_tokens + self.size.most_output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteParts:
    """One server and the services around it."""

    services: Services
    caller: Caller
    identity: Identity
    abilities: Abilities
    """What the server's engine is and does, as of now."""
    sizes: Sizes
    model: str
    """The name that tenants use."""
    answers_as: str
    """The name in the server's answers."""
    worker_time: WorkerTime = field(default_factory=WorkerTime)

    @property
    def engine(self) -> Engine:
        return Engine(kind=self.abilities.engine.kind, version=self.abilities.engine.version)


class RemoteLines(ChunkLines[RemoteLine]):
    """Submits lines to the caller that all chunks of a worker share, and makes results of its outcomes."""

    def __init__(self, claim: ClaimedChunk, parts: RemoteParts, *, number: int) -> None:
        """`number`: chunks that were opened earlier are asked first, within their class."""
        super().__init__(claim, FailureMaker(claim.batch_id))
        self._parts = parts
        self._number = number
        self.engine = parts.abilities.engine
        self._meets = parts.abilities.meets  # as at the claim, which took only what they cover
        self._keys: dict[int, object] = {}  # calls of unfinished lines, by line_no
        self._time = ChunkTime()
        self._wasted = NOTHING_WASTED
        self._created = int(time.time())
        self._is_chat = claim.endpoint == CHAT_ENDPOINT

    @contextmanager
    def opened(self) -> Iterator[None]:
        with self._parts.worker_time.divided_with(self._time):
            yield

    def prepare(self, raw: RawLine, *, is_wanted: Callable[[], bool], room: Room) -> RemoteLine:
        claim, parts = self.claim, self._parts
        assert raw.content is not None
        line = parse_line(raw.content, line_no=raw.line_no, endpoint=claim.endpoint, is_filled=claim.is_filled)
        request = parse_request(claim.endpoint, line.body)
        if isinstance(request, EmbeddingRequest | RerankRequest):
            return self._pooled(request, line, parts.sizes.of(request, is_wanted=is_wanted, room=room))
        assert isinstance(request, ChatRequest | CompletionRequest), "served_models.note_kind keeps others away"
        require_needs(request, self._meets, engine=parts.engine.kind)
        return self._generated(request, line, parts.sizes.of(request, is_wanted=is_wanted, room=room))

    def _generated(self, request: Request, line: InputLine, size: Size) -> RemoteLine:
        parts = self._parts
        tokens = tokens_of(request, size, self._meets)
        if tokens is None:
            require_honest(request, size)
        body = request_body(
            request,
            parts.identity.dialect,
            model=parts.identity.model,
            seed=self._seed(request, line.line_no),
            max_tokens=_token_limit(request, size),
            tokens=tokens,
        )
        is_chat = "messages" in body  # which a conversation that is sent as tokens is not
        expected = Expected(
            is_chat=is_chat,
            num_choices=request.sampling.n * _num_prompts(request),
            has_logprobs=request.sampling.logprobs is not None,
            answers_as=parts.answers_as,
            most_prompt_tokens=size.num_prompt_tokens,
            most_completion_tokens=size.most_output_tokens,
        )
        return RemoteLine(
            line_no=line.line_no,
            custom_id=line.custom_id,
            body=body,
            size=size,
            path="chat/completions" if is_chat else "completions",
            expected=expected,
            prefix=_prefix(request),
            context=line.context,
        )

    def _pooled(self, request: PoolRequest, line: InputLine, size: Size) -> RemoteLine:
        parts = self._parts
        tokens = size.prompts if Need.TOKEN_PROMPTS in self._meets else None
        is_rerank = isinstance(request, RerankRequest)
        expected = PoolExpected(
            num_items=num_items(request),
            is_rerank=is_rerank,
            answers_as=parts.answers_as,
            most_prompt_tokens=size.num_prompt_tokens,
        )
        return RemoteLine(
            line_no=line.line_no,
            custom_id=line.custom_id,
            body=pool_body(request, parts.identity.dialect, model=parts.identity.model, tokens=tokens),
            size=size,
            path=RERANK if is_rerank else EMBEDDINGS,
            expected=expected,
            prefix="",
            pooled=request,
        )

    def _seed(self, request: Request, line_no: int) -> int | None:
        """Return the line's seed, or one derived for it, so that a line that is asked again gives the same tokens.

        Equal prompts of one line would give equal answers by one seed, so that those have none.
        """
        dialect = self._parts.identity.dialect
        given = request.sampling.seed
        if given is not None and given > dialect.most_seed:
            message = f"seed is {given}; the engine of this model ({dialect.kind}) takes 0 to {dialect.most_seed}"
            raise BodyError("seed", message)
        if given is not None or _num_prompts(request) > 1 or Need.SEED not in self._meets:
            return given
        return derived_seed(self.claim.batch_id, line_no, 0) % (dialect.most_seed + 1)

    # --- the server ---

    def submit(self, lines: Sequence[tuple[RemoteLine, Output | None]], on_end: OnEnd) -> Mapping[int, Exception]:
        for line, _ in lines:
            key = self._keys[line.line_no] = object()
            self._parts.caller.submit(key, self._call(line), partial(self._end, line, on_end))
        return {}

    def _call(self, line: RemoteLine) -> Call:
        priority = ENGINE_PRIORITY[Priority(self.claim.priority)]
        return Call(
            path=line.path,
            body=line.body,
            expected=line.expected,
            order=(priority, self._number, line.prefix, line.line_no),
            seconds_left=max(0.0, self.claim.expires_at.timestamp() - time.time()),
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
        self._parts.caller.cancel(keys.values())
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
            model=parts.model,
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
            model=parts.model,
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

    @property
    def has_wasted(self) -> bool:
        return bool(self._wasted)


def _wasted(counts: Counts) -> Wasted:
    return Wasted(input_tokens=counts.prompt_tokens, output_tokens=counts.completion_tokens)


def _num_prompts(request: Request) -> int:
    return 1 if isinstance(request, ChatRequest) else len(request.prompts)


def _token_limit(request: Request, size: Size) -> int | None:
    """Return the limit to send: the line's, or the rest of the context where that is known exactly."""
    if request.sampling.max_tokens is not None:
        return request.sampling.max_tokens
    return size.most_output_tokens // request.sampling.n if size.is_exact else None


def _prefix(request: Request) -> str:
    """Return the beginning of a line's prompt, for neighbours that share it."""
    if isinstance(request, ChatRequest):
        return "\n".join(str(message["content"]) for message in request.messages)[:PREFIX_CHARACTERS]
    first = request.prompts[0]
    return first[:PREFIX_CHARACTERS] if isinstance(first, str) else str(first[:64])
