"""What the chunks of one worker share. Values only."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import Settings
from jobs.storage import Storage
from jobs.telemetry.declared import worker_meters
from jobs.telemetry.meters import Meters
from jobs.telemetry.traces import NO_TRACES, Traces
from workers.answers import AnswerMaker
from workers.chunks.room import Room
from workers.chunks.scores import ScoreRoom
from workers.chunks.worker_time import WorkerTime
from workers.drain import Drain
from workers.engine_host import EngineHost
from workers.prompts import PromptMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """One engine, one model's way with text, and the services that chunks are read from and written to."""

    host: EngineHost
    prompts: PromptMaker
    answers: AnswerMaker
    tokenizer: Any
    sessions: sessionmaker[Session]
    hold_sessions: sessionmaker[Session]
    """For leases and heartbeats alone, on connections of their own: they wait for nobody's flush."""
    storage: Storage
    settings: Settings
    drain: Drain
    model_fingerprint: str
    """Of the files that the engine loaded."""
    room: Room = field(default_factory=Room)
    """For long lines while they are prepared."""
    worker_time: WorkerTime = field(default_factory=WorkerTime)
    """Divided among the open chunks."""
    scores: ScoreRoom = field(default_factory=ScoreRoom)
    """For the log-probabilities of prompts while their lines run."""
    meters: Meters = field(default_factory=worker_meters)
    traces: Traces = NO_TRACES
    monotonic: Callable[[], float] = time.monotonic
