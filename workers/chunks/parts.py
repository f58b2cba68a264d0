"""What the chunks of one worker share. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from workers.answers import AnswerMaker
from workers.chunks.held import Services
from workers.chunks.room import Room
from workers.chunks.scores import ScoreRoom
from workers.chunks.worker_time import WorkerTime
from workers.engine_host.host import EngineHost
from workers.prompts import PromptMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts(Services):
    """One engine, one model's way with text, and the services around them."""

    host: EngineHost
    prompts: PromptMaker
    answers: AnswerMaker
    tokenizer: Any
    model_fingerprint: str
    """Of the files that the engine loaded."""
    room: Room = field(default_factory=Room)
    """For long lines while they are prepared."""
    worker_time: WorkerTime = field(default_factory=WorkerTime)
    """Divided among the open chunks."""
    scores: ScoreRoom = field(default_factory=ScoreRoom)
    """For the log-probabilities of prompts while their lines run."""
    meters: Meters = field(default_factory=lambda: Meters(WORKER))
