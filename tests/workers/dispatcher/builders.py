"""Hints that are recorded instead of sent, and a claim as made by a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks import claiming, leasing
from jobs.settings import Settings

MakeLines = Callable[[int], list[dict[str, Any]]]


class RecordedHints:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def validate(self, batch_id: str) -> bool:
        self.sent.append(("validate", batch_id))
        return True

    def finalise(self, batch_id: str) -> bool:
        self.sent.append(("finalise", batch_id))
        return True

    def run_chunk(self, chunk_id: int, *, model: str) -> bool:
        self.sent.append((model, chunk_id))
        return True


def claim_one(maker: sessionmaker[Session], worker: str, settings: Settings) -> leasing.ClaimedChunk:
    with maker.begin() as session:
        claim = claiming.claim_next(session, model="demo", worker_id=worker, lease=settings.lease)
        assert claim is not None
        return claim
