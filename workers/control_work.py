"""The interface of the work that features run in a control worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import Settings
from jobs.storage import Storage
from jobs.telemetry.meters import Meters
from jobs.telemetry.traces import Traces


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlParts:
    """The resources that a control worker gives to the work of a feature."""

    sessions: sessionmaker[Session]
    hold_sessions: sessionmaker[Session]
    """On separate connections, so that claims are renewed even while all others are in use."""
    storage: Storage
    settings: Settings
    meters: Meters
    traces: Traces
    is_stopping: Callable[[], bool]


class Running(Protocol):
    """Work that polls for due items in its own threads."""

    def start(self) -> None:
        """Start polling."""

    def wake(self) -> None:
        """Poll now: a batch may have ended."""

    def stop(self) -> None:
        """Start nothing more, and wait for what is in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlWork:
    """The work of one feature: what its `Feature.control` names."""

    connections: int
    """Postgres connections that it needs: those held while idle, and those for short statements."""
    make: Callable[[ControlParts], Running]
