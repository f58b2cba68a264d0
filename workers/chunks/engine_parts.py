"""The engine and the model's text processing that the chunks of a worker share. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jobs.engines.engine import OWN_ENGINE, ServingEngine
from workers.answers import AnswerMaker
from workers.chunks.adapter_folders import AdapterFolders
from workers.chunks.scores import ScoreRoom
from workers.chunks.services import Services
from workers.chunks.worker_time import WorkerTime
from workers.engine_host.host import EngineHost
from workers.prompts import PromptMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    services: Services
    host: EngineHost
    prompts: PromptMaker
    answers: AnswerMaker
    tokenizer: Any
    model_fingerprint: str
    """Fingerprint of the files that the engine loaded, and of its data type."""
    adapters: AdapterFolders
    engine: ServingEngine = OWN_ENGINE
    worker_time: WorkerTime = field(default_factory=WorkerTime)
    """Divided among the open chunks."""
    scores: ScoreRoom = field(default_factory=ScoreRoom)
    """Room for the log-probabilities of prompts while their lines run."""
