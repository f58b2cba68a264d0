"""The work of features in a control worker, beside validating batches and writing their files."""

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
    """What a control worker hands to the work of a feature."""

    sessions: sessionmaker[Session]
    hold_sessions: sessionmaker[Session]
    """On connections of their own: claims are renewed with them, however long the others are in use."""
    storage: Storage
    settings: Settings
    meters: Meters
    traces: Traces
    is_stopping: Callable[[], bool]


class Running(Protocol):
    """Work that looks for what is due, in threads of its own."""

    def start(self) -> None:
        """Begin to look."""

    def wake(self) -> None:
        """Look now: a batch may have ended."""

    def stop(self) -> None:
        """Take up no more, and wait for what is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlWork:
    """The work of one feature, as its `Feature.control` names it."""

    connections: int
    """To Postgres: what it holds while nothing is due, and for short statements."""
    make: Callable[[ControlParts], Running]
