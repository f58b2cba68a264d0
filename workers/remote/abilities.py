"""What a worker's server is and was seen to do, as of now: chunks and heartbeats read it, the prober replaces it."""

from __future__ import annotations

import threading
from collections.abc import Set
from dataclasses import replace

from jobs.engines.engine import ServingEngine
from jobs.lines.needs import Need


class Abilities:
    """An engine, of which several threads change a part each."""

    def __init__(self, engine: ServingEngine) -> None:
        self._lock = threading.Lock()
        self._engine = engine
        self._lost: frozenset[str] = frozenset()  # adapters that the server lists without having them

    @property
    def engine(self) -> ServingEngine:
        return self._engine

    @property
    def meets(self) -> Need:
        return self._engine.meets

    def note_version(self, version: str, meets: Need) -> None:
        with self._lock:
            self._engine = replace(self._engine, version=version, meets=meets)

    def note_meets(self, meets: Need) -> None:
        with self._lock:
            self._engine = replace(self._engine, meets=meets)

    def note_listed(self, adapters: Set[str]) -> None:
        """Take over the adapters that the server lists, except lost ones that it has listed ever since."""
        with self._lock:
            self._lost &= adapters
            self._engine = replace(self._engine, adapters=frozenset(adapters - self._lost))

    def note_away(self) -> None:
        """Note that the server lists nothing now: it may come back with adapters that it had lost."""
        with self._lock:
            self._lost = frozenset()

    def lose_adapter(self, name: str) -> None:
        """Claim no more lines of an adapter, until the server has stopped listing it and lists it anew."""
        with self._lock:
            self._lost |= {name}
            self._engine = replace(self._engine, adapters=self._engine.adapters - {name})
