"""Keeps what a worker knows of its server: probes it daily, and at once when its version changes.

The findings are rows that the workers of an engine share; one of them probes at a time. A capability whose probe showed
nothing either way stays as it was, and is probed again after minutes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from jobs import served_adapters
from jobs.database import transaction
from jobs.engines import served
from jobs.engines.engine import ServingEngine, Spill
from jobs.engines.served import Probed
from jobs.errors import InputError, ServiceError
from jobs.lines.endpoints import LineKind
from jobs.lines.needs import Need
from jobs.tables import ServedEngine
from workers.remote.abilities import Abilities
from workers.remote.identity import Identity
from workers.remote.probing.asking import PROBE_SECONDS, Finding, Server, ask
from workers.remote.probing.probes import MAX_TOKENS, Probe, abilities, probes_of
from workers.remote.probing.replies import CONCLUSIVE

log = logging.getLogger(__name__)

DAY = timedelta(days=1)
SOON = timedelta(minutes=5)
"""When a capability is probed again that was not seen either way."""
_HOLD = timedelta(minutes=10)
"""For a claim of the probes: longer than they take."""
_LOOK_SECONDS = 60.0
_FIRST_LOOK_SECONDS = 3.0
"""Between looks as long as nothing is known of the server."""


def first_abilities(identity: Identity, lines: LineKind, *, spill: Spill | None = None) -> Abilities:
    """Return what a server is taken for until its findings are read: what its dialect claims and no probe shows."""
    meets, _ = abilities(identity.dialect, {}, lines)
    kind, version = identity.dialect.kind, identity.version
    return Abilities(ServingEngine(kind=kind, version=version, meets=meets, spill=spill, adapters=identity.others))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server, and the model that one worker serves with it."""

    model: str
    """The name that batches use."""
    server: Server
    owner: str
    """The worker's id, or another name of its own."""
    identify: Callable[[], Identity]
    """Asks the server what it is now. Raises ServiceError, InputError."""


class Prober:
    """One thread; `look` is one turn of it."""

    def __init__(
        self,
        own: Served,
        known: Abilities,
        sessions: sessionmaker[Session],
        *,
        leave: Callable[[str], None] = lambda reason: None,
        seconds: float = PROBE_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`known` follows the findings; `leave` is called if another kind of engine answers at the address."""
        self._own = own
        self._known = known
        self._sessions = sessions
        self._leave = leave
        self._seconds = seconds
        self._now = now
        self._is_known = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread soon; a request that is under way is not waited for."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
            except ServiceError as error:
                log.warning("looking at the server's engine failed error=%s", error)
            except Exception:
                log.exception("looking at the server's engine failed")  # the thread must survive
            self._stop.wait(_LOOK_SECONDS if self._is_known else _FIRST_LOOK_SECONDS)

    def look(self) -> None:
        """Notice another version, take over what is known of it, and probe it if that is due. Raise ServiceError."""
        self._follow_version()
        with transaction(self._sessions) as session:
            self._note(session)
            is_ours = served.claim_probe(
                session, self._own.model, self._known.engine, owner=self._own.owner, hold=_HOLD
            )
            row = self._row(session)
            findings = dict(row.findings)
        if is_ours:
            self._probe(findings)
        with transaction(self._sessions) as session:
            self._take_over(self._row(session))

    def _follow_version(self) -> None:
        try:
            identity = self._own.identify()
        except (ServiceError, InputError):
            self._known.note_away()  # its lines notice it
            return
        engine = self._known.engine
        self._known.note_listed(identity.others)
        if self._known.engine.adapters != engine.adapters:
            log.info("adapters of the server changed listed=%s", sorted(identity.others))
        if identity.dialect.kind != engine.kind:
            self._leave(f"the server was {engine.label} and is {identity.dialect.kind} now: start the worker again")
        elif identity.version != engine.version and identity.version is not None:
            log.info("the server's version changed before=%s after=%s", engine.version, identity.version)
            meets, _ = abilities(identity.dialect, {}, self._own.server.kind)
            self._known.note_version(identity.version, meets)
            self._is_known = False

    def _note(self, session: Session) -> None:
        meets, may_meet = abilities(self._own.server.dialect, {}, self._own.server.kind)
        served.note(session, self._own.model, replace(self._known.engine, meets=meets), may_meet=may_meet)
        served_adapters.note_listed(session, self._own.model, self._known.engine.adapters)

    def _row(self, session: Session) -> ServedEngine:
        row = served.read(session, self._own.model, self._known.engine)
        assert row is not None, "it was noted"
        return row

    def _take_over(self, row: ServedEngine) -> None:
        self._is_known = row.probed_at is not None
        meets = Need(row.meets)
        if meets != self._known.meets:
            log.info("engine's abilities changed engine=%s meets=%s", self._known.engine.label, meets.names())
            self._known.note_meets(meets)

    def _probe(self, before: Mapping[str, Any]) -> None:
        """Make the due probes, without a transaction, and store what they showed."""
        own, now = self._own, self._now()
        probes = probes_of(own.server.dialect, own.server.kind)
        due = [probe for probe in probes if not _is_fresh(before.get(probe.name), now)]
        due.sort(key=lambda probe: probe.name in before)  # what was never asked first: the budget may not reach further
        budget = MAX_TOKENS - sum(_spent(one, now) for one in before.values())
        found, num_tokens = ask(own.server, due, budget=budget, seconds=self._seconds)
        findings = {name: _entry(before.get(name), one, now) for name, one in found.items()}
        self._record({**before, **findings}, findings, due, num_tokens=num_tokens)

    def _record(self, known: Mapping[str, Any], new: Mapping[str, Any], due: list[Probe], *, num_tokens: int) -> None:
        own = self._own
        seen = {name: one["seen"] for name, one in known.items()}
        meets, may_meet = abilities(own.server.dialect, seen, own.server.kind)
        is_whole = all(probe.name in new and new[probe.name]["last"] in CONCLUSIVE for probe in due)
        probed = Probed(
            meets=meets,
            may_meet=may_meet,
            findings=new,
            num_tokens=num_tokens,
            again=DAY if is_whole else SOON,
        )
        with transaction(self._sessions) as session:
            is_ours = served.record(session, own.model, self._known.engine, probed, owner=own.owner)
        shown = {name: str(one["last"]) for name, one in new.items()}
        label = self._known.engine.label
        log.info("engine probed engine=%s tokens=%d is_kept=%s seen=%s", label, num_tokens, is_ours, shown)


def _is_fresh(entry: Mapping[str, Any] | None, now: float) -> bool:
    if entry is None or entry["seen"] not in CONCLUSIVE:
        return False
    return bool(now - entry["at"] < (DAY - SOON).total_seconds())


def _day(now: float) -> int:
    """Return the number of a UTC day."""
    return int(now // DAY.total_seconds())


def _spent(entry: Mapping[str, Any] | None, now: float) -> int:
    """Return the tokens that a capability's probes have used today."""
    return int(entry["tokens"]) if entry is not None and entry["day"] == _day(now) else 0


def _entry(before: Mapping[str, Any] | None, found: Finding, now: float) -> dict[str, Any]:
    """Return what is stored of a finding: one that says nothing leaves what was seen before, and when."""
    last = str(found.seen)
    asked = {"last": last, "day": _day(now), "tokens": found.num_tokens + _spent(before, now)}
    if found.seen in CONCLUSIVE or before is None or before["seen"] not in CONCLUSIVE:
        return {"seen": last, "at": now, **asked}
    return {**before, **asked}
