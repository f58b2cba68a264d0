"""A whole worker without an engine: a host that answers on release, and a watch over its chunks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from engine.process.messages import EngineInfo, EngineStats, FinishReason, TokenDelta
from engine.scheduling.request import NewRequest
from jobs.chunks.fleet import RunningLines
from workers.engine_host.flights import Owner

NEVER = 10_000.0
"""Poll interval of a worker: so long that every claim has another reason."""


class GatedHost:
    """Answers requests at once, unless it is held."""

    stats = EngineStats()

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Owner] = {}
        self._is_open = True

    def start(self) -> EngineInfo:
        return EngineInfo(
            num_kv_blocks=8, block_size=16, max_model_len=512, vocab_size=9, eos_token_ids=(1,), device="cpu", dtype="f"
        )

    def next_request_id(self) -> int:
        return next(self._ids)

    def submit(self, *requests: tuple[NewRequest, Owner]) -> dict[int, Exception]:
        with self._lock:
            self._waiting |= {new.request_id: owner for new, owner in requests}
            is_open = self._is_open
        if is_open:
            self._answer_all()
        return {}

    def hold(self) -> None:
        """Answer nothing from now on."""
        self._is_open = False

    def release(self) -> None:
        """Answer everything that waits, and from now on what comes."""
        with self._lock:
            self._is_open = True
        self._answer_all()

    def _answer_all(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for request_id, owner in waiting.items():
            owner.receive(TokenDelta(request_id=request_id, token_ids=[40], finish_reason=FinishReason.LENGTH))

    def abort(self, request_ids: Iterable[int]) -> None: ...
    def abort_child(self, request_id: int, index: int) -> None: ...

    def running_lines(self) -> dict[str, RunningLines]:
        return {}

    is_wedged = False

    def close(self) -> None: ...


class Watch:
    """Polls the chunks until a condition holds."""

    def __init__(self, maker: sessionmaker[Session]) -> None:
        self._maker = maker

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._maker() as session:
            return [tuple(row) for row in session.execute(text(sql)).all()]

    def until(self, sql: str, expected: list[tuple[Any, ...]]) -> None:
        for _ in range(600):
            if self.rows(sql) == expected:
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"{sql} is {self.rows(sql)}, not {expected}")


STATES = "SELECT state, count(*)::int FROM chunk GROUP BY state ORDER BY state"


OPEN = "SELECT priority, count(*)::int FROM chunk WHERE state = 'leased' GROUP BY priority ORDER BY priority"


OWNERS = "SELECT tenant.name FROM ledger JOIN tenant ON tenant.id = ledger.tenant_id ORDER BY ledger.id"
"""With one slot and one class, the ledger's entries are in the order of claims, except for one newcomer at a time."""
