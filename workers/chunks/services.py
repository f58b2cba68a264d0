"""The services that the chunks of one worker share. Values only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import Settings
from jobs.storage import Storage
from jobs.telemetry.meters import Meters
from jobs.telemetry.traces import NO_TRACES, Traces
from workers.chunks.room import Room
from workers.drain import Drain


class Tally:
    """Counts the tokens that a worker has computed, without those from a prefix cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_tokens = 0

    def add(self, tokens: int) -> None:
        with self._lock:
            self.num_tokens += tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of a worker's chunks, with any answerer."""

    sessions: sessionmaker[Session]
    hold_sessions: sessionmaker[Session]
    """Only for leases and heartbeats, on separate connections, so that they wait for no flush."""
    storage: Storage
    settings: Settings
    meters: Meters
    traces: Traces = NO_TRACES
    drain: Drain = field(default_factory=Drain)
    room: Room = field(default_factory=Room)
    """Room for long lines while they are prepared."""
    tally: Tally = field(default_factory=Tally)
    monotonic: Callable[[], float] = time.monotonic
