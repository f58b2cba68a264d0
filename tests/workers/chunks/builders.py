"""A worker's chunk without an engine: a host that answers on command, and a bench that claims chunks and runs them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from engine.outputs import TokenLogprobs
from engine.process.messages import EngineStats, FinishReason, TokenDelta
from engine.scheduling.request import NewRequest
from jobs.chunks import claiming
from jobs.chunks.leasing import ClaimedChunk
from workers.chunks.engine_lines import EngineLines
from workers.chunks.engine_parts import EngineParts
from workers.chunks.run import ChunkRun
from workers.chunks.services import Services
from workers.engine_host.flights import Owner

DEMO_MODEL = Path(__file__).parents[3] / "examples" / "demo_model"
CHUNKS = "SELECT state, fence FROM chunk ORDER BY id"
RESULTS = "SELECT line_no, status_code FROM result ORDER BY line_no"
BILLED = """
    SELECT count(*) FILTER (WHERE output_tokens > 0)::int, coalesce(sum(output_tokens), 0)::int FROM result
    WHERE (SELECT sum(output_tokens) FROM ledger) = (SELECT sum(output_tokens) FROM result)
"""

MakeLine = Callable[..., dict[str, Any]]
SubmitLines = Callable[..., str]

LOGPROBS = TokenLogprobs(logprob=-1.0, rank=1, top_token_ids=[], top_logprobs=[])


class FakeHost:
    """Takes requests; `answer` finishes those that are waiting. With `instant` each is answered as it comes."""

    def __init__(self, *, instant: bool = False) -> None:
        self.instant = instant
        self.is_silent = False
        self.num_silent_checks = 0
        self.waiting: dict[int, tuple[NewRequest, Owner]] = {}
        self.aborted: list[int] = []
        self.stopped: list[tuple[int, int]] = []
        self.prompts: list[list[int]] = []
        self.adapters: list[str | None] = []
        self.group_sizes: list[int] = []
        self.stats = EngineStats()
        self._changed = threading.Condition()
        self._ids = itertools.count()

    def next_request_id(self) -> int:
        return next(self._ids)

    def submit(self, *requests: tuple[NewRequest, Owner]) -> dict[int, Exception]:
        self.group_sizes.append(len(requests))
        failed: dict[int, Exception] = {}
        for new, owner in requests:
            try:
                self.submit_one(new, owner)
            except OverflowError as error:
                failed[new.request_id] = error
        return failed

    def submit_one(self, new: NewRequest, owner: Owner) -> None:
        with self._changed:
            self.prompts.append(list(new.prompt_token_ids))
            self.adapters.append(new.adapter)
            self.waiting[new.request_id] = (new, owner)
            self._changed.notify_all()
        if self.instant:
            self.answer(1)

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.prompts) >= count, timeout=20)

    def answer(self, count: int, *, error: str | None = None) -> None:
        for request_id in list(self.waiting)[:count]:
            _, owner = self.waiting.pop(request_id)
            if error is not None:
                owner.receive(TokenDelta(request_id=request_id, finish_reason=FinishReason.ERROR, error=error))
            else:
                owner.receive(TokenDelta(request_id=request_id, token_ids=[40, 41], finish_reason=FinishReason.LENGTH))

    def answer_in_full(self, *, max_model_len: int) -> None:
        """Finish every waiting request with the maximum tokens of each of its answers."""
        for request_id, (new, owner) in list(self.waiting.items()):
            del self.waiting[request_id]
            room = max_model_len - len(new.prompt_token_ids)
            tokens = [40] * (room if new.params.max_tokens is None else new.params.max_tokens)
            for index in range(new.params.n):
                logprobs = None if new.params.logprobs is None else [LOGPROBS] * len(tokens)
                owner.receive(
                    TokenDelta(
                        request_id=request_id,
                        index=index,
                        token_ids=tokens,
                        logprobs=logprobs,
                        finish_reason=FinishReason.LENGTH,
                    )
                )

    def set_aside(self) -> None:
        """Break every waiting request: it waits for another engine."""
        for _, owner in self.waiting.values():
            owner.set_aside()

    def break_all(self) -> None:
        """End every waiting request by a broken row, permanently."""
        for request_id, (_, owner) in list(self.waiting.items()):
            del self.waiting[request_id]
            owner.receive(
                TokenDelta(request_id=request_id, finish_reason=FinishReason.ERROR, error="NaN", good_rows_before=0)
            )

    def generate(self, *token_ids: int) -> None:
        """Give every waiting request these tokens, without an end."""
        for request_id, (_, owner) in self.waiting.items():
            owner.receive(TokenDelta(request_id=request_id, token_ids=list(token_ids)))

    def abort_child(self, request_id: int, index: int) -> None:
        self.stopped.append((request_id, index))

    def abort(self, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            self.waiting.pop(request_id, None)
            self.aborted.append(request_id)

    @property
    def is_wedged(self) -> bool:
        with self._changed:
            self.num_silent_checks += self.is_silent
            self._changed.notify_all()
        return self.is_silent

    def wait_for_silent_checks(self, count: int) -> None:
        """Wait until the chunk has checked the current silence `count` times."""
        with self._changed:
            wanted = self.num_silent_checks + count
            assert self._changed.wait_for(lambda: self.num_silent_checks >= wanted, timeout=20)


class Bench:
    """Claims the next chunk and runs it in a thread."""

    def __init__(self, parts: EngineParts, maker: sessionmaker[Session]) -> None:
        self.parts = parts
        self.maker = maker
        self.thread: threading.Thread | None = None

    @property
    def services(self) -> Services:
        return self.parts.services

    def change_parts(self, **changes: Any) -> None:
        """Use other parts or services for chunks that are started from now on."""
        own = {name: changes.pop(name) for name in [*changes] if name in EngineParts.__slots__}
        self.parts = replace(self.parts, services=replace(self.services, **changes), **own)

    def claim(self) -> ClaimedChunk:
        with self.maker.begin() as session:
            claim = claiming.claim_next(session, model="demo", worker_id="w", lease=self.services.settings.lease)
        assert claim is not None
        return claim

    def start(self, claim: ClaimedChunk) -> None:
        self.thread = threading.Thread(target=self.run, args=(claim,))
        self.thread.start()

    def run(self, claim: ClaimedChunk) -> bool:
        return ChunkRun(EngineLines(claim, self.parts), self.services).run()

    def join(self) -> None:
        assert self.thread is not None
        self.thread.join(20)
        assert not self.thread.is_alive(), "the chunk never ended"

    def age_lease(self) -> None:
        """Let all but a second of the lease pass."""
        with self.maker.begin() as session:
            session.execute(text("UPDATE chunk SET lease_until = now() + interval '1 second'"))

    def rows(self, sql: str) -> list[Any]:
        with self.maker() as session:
            return [tuple(row) for row in session.execute(text(sql)).all()]

    def wait_until(self, sql: str, expected: list[Any]) -> None:
        for _ in range(400):
            if self.rows(sql) == expected:
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"{sql} is {self.rows(sql)}, not {expected}")
