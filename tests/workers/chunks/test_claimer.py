"""What a claimer makes of a database that went back: after a restore, or a failover that lost its last commits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks.leasing import ClaimedChunk
from jobs.settings import Settings
from jobs.telemetry.declared import worker_meters
from workers.chunks.claimer import Claimer
from workers.drain import Drain


def test_a_chunk_that_is_given_out_again_under_the_same_fence_runs_once_here(
    maker: sessionmaker[Session],
    settings: Settings,
    submit_valid: Callable[..., str],
    line: Callable[[int], dict[str, Any]],
) -> None:
    claimed, may_end, drain = list[ClaimedChunk](), threading.Event(), Drain()

    def run(claim: ClaimedChunk) -> bool:
        claimed.append(claim)
        return may_end.wait(60)

    claimer = Claimer(
        worker_id="w",
        model="demo",
        run=run,
        sessions=maker,
        settings=settings.model_copy(update={"claim_alone_seconds": 0.05, "worker_chunks": 2}),
        drain=drain,
        meters=worker_meters(),
    )
    submit_valid([line(0)])
    claimer.start()
    until_leased(maker)
    with maker.begin() as session:
        session.execute(text("UPDATE chunk SET state = 'ready', fence = 0, worker_id = NULL, lease_until = NULL"))
    until_leased(maker)
    drain.begin(60)
    may_end.set()
    claimer.join()
    assert [claim.fence for claim in claimed] == [1]


def until_leased(maker: sessionmaker[Session]) -> None:
    for _ in range(600):
        with maker() as session:
            if session.scalar(text("SELECT state FROM chunk")) == "leased":
                return
        threading.Event().wait(0.05)
    raise AssertionError("nobody claims the chunk")
