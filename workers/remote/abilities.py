"""What a worker's server is and was seen to do, as of now: chunks and heartbeats read it, the prober replaces it."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.engines.engine import ServingEngine
from jobs.lines.needs import Need


@dataclass(slots=True)
class Abilities:
    """A reference that one thread replaces."""

    engine: ServingEngine

    @property
    def meets(self) -> Need:
        return self.engine.meets
