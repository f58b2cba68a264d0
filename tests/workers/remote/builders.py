"""A worker of a server without its process: it claims chunks and runs them, and reads their results."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks import claiming
from jobs.chunks.leasing import ClaimedChunk
from jobs.engines.engine import EVERYTHING, ServingEngine, Spill
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from workers.chunks.run import ChunkRun
from workers.chunks.services import Services
from workers.drain import Drain
from workers.remote.abilities import Abilities
from workers.remote.answerer import RemoteAnswerer
from workers.remote.calls.caller import Caller
from workers.remote.calls.pace import Pace
from workers.remote.checks import chat_check
from workers.remote.dialects import VLLM, Dialect
from workers.remote.exchange import Address, Patience
from workers.remote.identity import Identity
from workers.remote.lines import RemoteParts
from workers.remote.sizes import ByteSizes, Sizes

QUICK = Patience(answer_seconds=1.5, stall_seconds=0.5, away_seconds=0.4, look_seconds=0.05, most_look_seconds=0.1)
CONTEXT = 2048


class Post:
    """One worker; `open` starts it, with the parts of a test."""

    def __init__(
        self, url: str, maker: sessionmaker[Session], storage: Storage, settings: Settings, *, worker_id: str = "w"
    ) -> None:
        self.url = url
        self.worker_id = worker_id
        self.maker = maker
        self.settings = settings
        self.drain = Drain()
        self.services = Services(
            sessions=maker,
            hold_sessions=maker,
            storage=storage,
            settings=settings,
            drain=self.drain,
            meters=Meters(WORKER),
        )
        self.answerer: RemoteAnswerer | None = None
        self.caller: Caller | None = None
        self.abilities = Abilities(ServingEngine(kind="vllm"))
        self._threads: list[threading.Thread] = []

    def open(
        self,
        *,
        dialect: Dialect = VLLM,
        identity: Identity | None = None,
        answers_as: str = "served",
        sizes: Sizes | None = None,
        seats: int = 8,
        patience: Patience = QUICK,
        key: str | None = None,
        spill: Spill | None = None,
    ) -> RemoteAnswerer:
        identity = identity or Identity(dialect=dialect, version="9.9", model="served")
        address = Address(url=self.url, key=key)
        self.caller = Caller(address, Pace(start=seats, most=seats), chat_check(identity), patience=patience)
        kind, version, meets = identity.dialect.kind, identity.version, identity.dialect.meets
        self.abilities = Abilities(ServingEngine(kind=kind, version=version, meets=meets, spill=spill))
        parts = RemoteParts(
            services=self.services,
            caller=self.caller,
            identity=identity,
            abilities=self.abilities,
            sizes=sizes or ByteSizes(max_model_len=CONTEXT),
            answers_as=answers_as,
        )
        self.answerer = RemoteAnswerer(parts, max_model_len=CONTEXT)
        self.answerer.start(is_busy=lambda: False)
        return self.answerer

    def claim(self) -> ClaimedChunk:
        """Claim the next chunk, whatever its lines need."""
        claim = self.claim_if_any()
        assert claim is not None, "no chunk is ready"
        return claim

    def claim_if_any(self) -> ClaimedChunk | None:
        engine = replace(self.abilities.engine, meets=EVERYTHING)
        lease = self.settings.lease
        with self.maker.begin() as session:
            return claiming.claim_next(session, model="demo", worker_id=self.worker_id, lease=lease, engine=engine)

    def run_next(self) -> bool:
        """Claim the next chunk and run it; return whether it was finished."""
        answerer = self.answerer or self.open()
        return ChunkRun(answerer.open(self.claim()), self.services).run()

    def begin_next(self) -> threading.Thread:
        """Run the next chunk in a thread."""
        answerer, claim = self.answerer or self.open(), self.claim()
        thread = threading.Thread(target=lambda: ChunkRun(answerer.open(claim), self.services).run())
        thread.start()
        self._threads.append(thread)
        return thread

    def close(self) -> None:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), "a chunk never ended"
        if self.answerer is not None:
            self.answerer.close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.maker() as session:
            return [tuple(row) for row in session.execute(text(sql))]

    def results(self) -> dict[str, dict[str, Any]]:
        """Return the lines of the results by custom_id."""
        lines = [orjson.loads(row[0]) for row in self.rows("SELECT line FROM result ORDER BY line_no")]
        return {each["custom_id"]: each for each in lines}

    def bodies(self) -> dict[str, dict[str, Any]]:
        return {name: each["response"]["body"] for name, each in self.results().items()}

    def bodies_of(self, status: int) -> list[dict[str, Any]]:
        responses = [each["response"] for each in self.results().values() if each["response"]]
        return [response["body"] for response in responses if response["status_code"] == status]

    @staticmethod
    def wait_a_moment() -> None:
        threading.Event().wait(0.05)

    def billed(self) -> tuple[int, int]:
        """Return the tokens in the ledger, and check that they are those of the results."""
        sums = "coalesce(sum(input_tokens), 0)::int, coalesce(sum(output_tokens), 0)::int"
        (ledger,), (results,) = self.rows(f"SELECT {sums} FROM ledger"), self.rows(f"SELECT {sums} FROM result")
        assert ledger == results
        return ledger
