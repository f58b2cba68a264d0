"""What chunks are read from and written to, which those of one worker share. Values only."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The surroundings of a worker's chunks, whatever answers their lines."""

    sessions: sessionmaker[Session]
    hold_sessions: sessionmaker[Session]
    """For leases and heartbeats alone, on connections of their own: they wait for nobody's flush."""
    storage: Storage
    settings: Settings
    meters: Meters
    traces: Traces = NO_TRACES
    drain: Drain = field(default_factory=Drain)
    room: Room = field(default_factory=Room)
    """For long lines while they are prepared."""
    monotonic: Callable[[], float] = time.monotonic
