"""The slots of a worker, shared by hints and by its own claims, on a real database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from engine.process.messages import EngineStats, FinishReason, Ready, TokenDelta
from engine.scheduling.request import NewRequest
from jobs.settings import Settings
from jobs.storage import Storage
from workers.answers import AnswerMaker
from workers.chunks.parts import WorkerParts
from workers.chunks.service import ChunkService
from workers.drain import Drain
from workers.engine_host import Owner
from workers.prompts import PromptMaker


class InstantHost:
    """Answers each request as it comes."""

    stats = EngineStats()

    def start(self) -> Ready:
        return Ready(
            num_kv_blocks=8, block_size=16, max_model_len=512, vocab_size=9, eos_token_ids=[1], device="cpu", dtype="f"
        )

    def next_request_id(self) -> int:
        return 1

    def submit(self, new: NewRequest, owner: Owner) -> None:
        owner.receive(TokenDelta(request_id=new.request_id, token_ids=[40], finish_reason=FinishReason.LENGTH))

    def abort(self, request_ids: Iterable[int]) -> None: ...
    def abort_child(self, request_id: int, index: int) -> None: ...

    def seconds_since_progress(self) -> float:
        return 0.0

    def close(self) -> None: ...


class BusyExecutor:
    """All its threads are taken: what is handed over waits until the test runs it."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []
        self.has_some = threading.Event()

    def submit(self, work: Callable[..., None], *arguments: Any) -> None:
        self.held.append(lambda: work(*arguments))
        self.has_some.set()


def test_a_hint_never_waits_for_the_slot_of_a_chunk_that_still_needs_a_thread(
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
    tokenizer: Any,
    submit_valid: Callable[[list[dict[str, Any]]], str],
    line: Callable[..., dict[str, Any]],
) -> None:
    submit_valid([line(number) for number in range(2 * settings.chunk_lines)])
    settings = settings.model_copy(update={"worker_chunks": 1, "claim_alone_seconds": 0.02})
    host: Any = InstantHost()

    def make_parts(ready: Ready, drain: Drain) -> WorkerParts:
        return WorkerParts(
            host=host,
            prompts=PromptMaker(tokenizer, max_model_len=ready.max_model_len, vocab_size=ready.vocab_size),
            answers=AnswerMaker(tokenizer, model="demo"),
            tokenizer=tokenizer,
            sessions=maker,
            storage=storage,
            settings=settings,
            drain=drain,
            model_fingerprint="demo",
        )

    service = ChunkService(
        worker_id="w", model="demo", host=host, make_parts=make_parts, sessions=maker, settings=settings
    )
    executor: Any = BusyExecutor()
    service.start(executor)
    assert executor.has_some.wait(20), "the worker claimed nothing by itself"

    with maker() as session:
        waiting = session.execute(text("SELECT id FROM chunk WHERE state = 'ready'")).scalar_one()
    hinted = threading.Thread(target=service.run_hinted, args=(waiting,), daemon=True)
    hinted.start()
    hinted.join(10)
    assert not hinted.is_alive(), "the hint holds a thread that the claimed chunk needs"

    service.begin_drain()
    executor.held.pop()()
    service.drain()
    service.close()
    with maker() as session:
        states = session.execute(text("SELECT state, fence FROM chunk ORDER BY id")).all()
    assert [tuple(row) for row in states] == [("done", 1), ("ready", 0)]
