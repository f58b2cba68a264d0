"""A bench for chunks: a real database and store, the demo model's tokenizer, an engine that answers on command."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import Settings
from jobs.storage import Storage
from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from tests.workers.chunks.builders import DEMO_MODEL, Bench, FakeHost
from workers.answers import AnswerMaker
from workers.chunks.adapter_folders import AdapterFolders
from workers.chunks.engine_parts import EngineParts
from workers.chunks.services import Services
from workers.drain import Drain
from workers.prompts import PromptMaker


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def drain() -> Drain:
    return Drain()


@pytest.fixture
def bench(
    host: FakeHost, drain: Drain, maker: sessionmaker[Session], storage: Storage, settings: Settings, tokenizer: Any
) -> Bench:
    services = Services(
        sessions=maker,
        hold_sessions=maker,
        storage=storage,
        settings=settings,
        drain=drain,
        meters=Meters(WORKER),
    )
    parts = EngineParts(
        services=services,
        host=host,  # type: ignore[arg-type]
        prompts=PromptMaker(tokenizer, max_model_len=512, vocab_size=len(tokenizer)),
        answers=AnswerMaker(tokenizer, model="demo"),
        tokenizer=tokenizer,
        model_fingerprint="demo",
        adapters=AdapterFolders(maker, model="demo", folder=DEMO_MODEL),
    )
    return Bench(parts, maker)
