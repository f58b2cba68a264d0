"""Makes the request of a line: its body in the server's dialect, its size, what its answer must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.chunks.leasing import ClaimedChunk
from jobs.engines.engine import ServingEngine
from jobs.lines.bodies import ChatRequest, CompletionRequest
from jobs.lines.body_checks import BodyError
from jobs.lines.embedding_bodies import EmbeddingRequest
from jobs.lines.endpoints import parse_request
from jobs.lines.needs import Need
from jobs.lines.reading import InputLine, RawLine, parse_line
from jobs.lines.rerank_bodies import RerankRequest
from workers.chunks.answerer import Room
from workers.prompts import derived_seed
from workers.remote.identity import Identity
from workers.remote.pooled import EMBEDDINGS, RERANK, PoolExpected, PoolRequest, num_items, pool_body
from workers.remote.reading import Awaited, Expected
from workers.remote.requests import Request, limit_name, require_honest, require_needs, tokens_of
from workers.remote.requests import body_of as request_body
from workers.remote.sizes import Size, Sizes

PREFIX_CHARACTERS = 512
"""Characters of a prompt by which lines are put next to each other."""


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
    own_limit: str | None = None
    """As in `Call`."""

    @property
    def num_prompt_tokens(self) -> int:
        return self.size.num_prompt_tokens

    @property
    def most_tokens(self) -> int:
        return self.size.num_prompt_tokens + self.size.most_output_tokens

    @property
    def most_read_tokens(self) -> int:
        return self.size.most_read_tokens

    @property
    def most_output_tokens(self) -> int:
        return self.size.most_output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRequests:
    """Of the lines of one chunk."""

    claim: ClaimedChunk
    engine: ServingEngine
    identity: Identity
    sizes: Sizes
    answers_as: str
    """The name in the server's answers."""

    def of(self, raw: RawLine, *, is_wanted: Callable[[], bool], room: Room) -> RemoteLine:
        """Return a line that is ready to be asked. Raise BodyError, Unwanted."""
        claim = self.claim
        assert raw.content is not None
        line = parse_line(raw.content, line_no=raw.line_no, endpoint=claim.endpoint, is_filled=claim.is_filled)
        request = parse_request(claim.endpoint, line.body)
        if isinstance(request, EmbeddingRequest | RerankRequest):
            return self._pooled(request, line, self.sizes.of(request, is_wanted=is_wanted, room=room))
        assert isinstance(request, ChatRequest | CompletionRequest), "served_models.note_kind keeps others away"
        require_needs(request, self.engine.meets, engine=self.engine.kind)
        return self._generated(request, line, self.sizes.of(request, is_wanted=is_wanted, room=room))

    def _generated(self, request: Request, line: InputLine, size: Size) -> RemoteLine:
        tokens = tokens_of(request, size, self.engine.meets)
        if tokens is None:
            require_honest(request, size)
        limit = _token_limit(request, size, is_reserved=self.engine.spill is not None)
        body = request_body(
            request,
            self.identity.dialect,
            model=self._server_model,
            seed=self._seed(request, line.line_no),
            max_tokens=limit,
            tokens=tokens,
        )
        is_chat = "messages" in body  # which a conversation that is sent as tokens is not
        is_ours = request.sampling.max_tokens is None and limit is not None
        expected = Expected(
            is_chat=is_chat,
            num_choices=request.sampling.n * _num_prompts(request),
            num_logprobs=request.sampling.logprobs,
            answers_as=self.claim.server_model or self.answers_as,
            most_prompt_tokens=size.most_read_tokens,
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
            own_limit=limit_name(body, self.identity.dialect) if is_ours else None,
        )

    def _pooled(self, request: PoolRequest, line: InputLine, size: Size) -> RemoteLine:
        tokens = size.prompts if Need.TOKEN_PROMPTS in self.engine.meets else None
        is_rerank = isinstance(request, RerankRequest)
        expected = PoolExpected(
            num_items=num_items(request),
            is_rerank=is_rerank,
            answers_as=self.claim.server_model or self.answers_as,
            most_prompt_tokens=size.most_read_tokens,
        )
        return RemoteLine(
            line_no=line.line_no,
            custom_id=line.custom_id,
            body=pool_body(request, self.identity.dialect, model=self._server_model, tokens=tokens),
            size=size,
            path=RERANK if is_rerank else EMBEDDINGS,
            expected=expected,
            prefix="",
            pooled=request,
        )

    @property
    def _server_model(self) -> str:
        return self.claim.server_model or self.identity.model

    def _seed(self, request: Request, line_no: int) -> int | None:
        """Return the line's seed, or one derived for it, so that a line that is asked again gives the same tokens.

        Equal prompts of one line would give equal answers by one seed, so that those have none.
        """
        dialect = self.identity.dialect
        given = request.sampling.seed
        if given is not None and given > dialect.most_seed:
            message = f"seed is {given}; the engine of this model ({dialect.kind}) takes 0 to {dialect.most_seed}"
            raise BodyError("seed", message)
        if given is not None or _num_prompts(request) > 1 or Need.SEED not in self.engine.meets:
            return given
        return derived_seed(self.claim.batch_id, line_no, 0) % (dialect.most_seed + 1)


def _num_prompts(request: Request) -> int:
    return 1 if isinstance(request, ChatRequest) else len(request.prompts)


def _token_limit(request: Request, size: Size, *, is_reserved: bool) -> int | None:
    """Return the limit to send: the line's, the one for which money is reserved, or the rest of a context that is known
    exactly."""
    if request.sampling.max_tokens is not None:
        return request.sampling.max_tokens
    if not size.is_exact and not is_reserved:
        return None
    return size.most_output_tokens // (request.sampling.n * _num_prompts(request))


def _prefix(request: Request) -> str:
    """Return the beginning of a line's prompt, for neighbours that share it."""
    if isinstance(request, ChatRequest):
        return "\n".join(str(message["content"]) for message in request.messages)[:PREFIX_CHARACTERS]
    first = request.prompts[0]
    return first[:PREFIX_CHARACTERS] if isinstance(first, str) else str(first[:64])
