"""Injects faults into a running stack and ends those that last; records each fault, its time and the work it hit."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TextIO

import psutil
import psycopg

from lab.chaos.plan import BLOCK_SECONDS, HANG_SECONDS, OUTAGE_SECONDS, TROUBLE_SECONDS, Kind, PlannedFault
from lab.chaos.stack import Kept, Stack, children_of
from lab.s3_server import Mood

_LOOK_SECONDS = 0.05
_AGAIN_SECONDS = 1.0
_LATE_SECONDS = 60.0
"""After the last planned fault; faults that could not be injected by then are dropped."""
_PAST_LEASE_SECONDS = 3.0
_METHODS = ("GET HEAD PUT POST DELETE", "GET HEAD", "PUT POST DELETE")
_MOODS = (Mood.REFUSE, Mood.HANG, Mood.NO_BUCKET, Mood.NO_ROUTE, Mood.OTHER_SITE)
_HELD = """
    SELECT chunk.id, batch_id, first_line, num_lines, fence FROM chunk JOIN worker ON worker.id = chunk.worker_id
    WHERE chunk.state = 'leased' AND worker.pid = %s AND worker.stopped_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class HeldChunk:
    """A chunk that a worker held when a fault hit the worker."""

    chunk_id: int
    batch_id: str
    first_line: int
    num_lines: int
    fence: int


@dataclass(slots=True, kw_only=True)
class Fault:
    """An injected fault. Times are Unix seconds."""

    kind: Kind
    at: float
    what: str
    held: Sequence[HeldChunk] = ()
    """The chunks of the worker, or of the engine's worker."""
    until: float | None = None
    """End of a fault that lasts; for an engine, when the next one was running."""


@dataclass(slots=True, eq=False)
class Chaos:
    """Carries out a plan. Must be used from the thread that started the stack."""

    stack: Stack
    plan: Sequence[PlannedFault]
    lease_seconds: float
    seed: int
    log: TextIO
    """One line per fault, written at once."""
    done: list[Fault] = field(default_factory=list)
    _planned: deque[tuple[float, PlannedFault]] = field(default_factory=deque)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    """Pending ends of faults, and faults that could not be injected yet."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _stopped: set[str] = field(default_factory=set)
    _without_engine: dict[str, tuple[Fault, int]] = field(default_factory=dict)
    _gives_up_at: float = math.inf

    def run(self, is_over: Callable[[], bool]) -> None:
        """Carry out the plan, and keep the stack running until `is_over()`."""
        started_at = time.monotonic()
        rng = random.Random(self.seed)
        self._planned.extend((started_at + fault.at_seconds, fault) for fault in self.plan)
        self._gives_up_at = self._planned[-1][0] + _LATE_SECONDS if self._planned else started_at
        while not is_over():
            if self._planned and self._planned[0][0] <= time.monotonic():
                self._strike(self._planned.popleft()[1], rng)
            if self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
            self.stack.tend()
            self._look_for_engines()
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """Start no more faults; lasting ones are still ended."""
        self._planned.clear()
        self._gives_up_at = -math.inf

    @property
    def num_due(self) -> int:
        """Return the number of pending faults and ends of faults."""
        return len(self._planned) + len(self._due)

    def _at(self, monotonic: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (monotonic, next(self._numbers), do))

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        self._at(time.monotonic() + seconds, do)

    def _strike(self, planned: PlannedFault, rng: random.Random) -> None:
        strike = {
            Kind.WORKER_KILL: lambda: self._on_worker(planned, rng, self._kill_worker),
            Kind.WORKER_STOP: lambda: self._on_worker(planned, rng, self._stop_worker),
            Kind.ENGINE_KILL: lambda: self._on_worker(planned, rng, self._kill_engine),
            Kind.ENGINE_FREEZE: lambda: self._on_worker(planned, rng, self._freeze_engine),
            Kind.VALKEY_LOSS: lambda: self._lose_valkey(planned.kind, seconds=0.0),
            Kind.VALKEY_OUTAGE: lambda: self._lose_valkey(planned.kind, seconds=OUTAGE_SECONDS),
            Kind.POSTGRES_CRASH: lambda: self._crash_postgres(planned, rng),
            Kind.CONNECTIONS: lambda: self._break_connections(planned),
            Kind.ROLE_KILL: lambda: self._kill_role(planned),
            Kind.STORE_TROUBLE: lambda: self._trouble_store(planned),
            Kind.SERVER_KILL: lambda: self._kill_server(planned.kind),
            Kind.SERVER_HANG: lambda: self._hang_server(planned.kind),
            Kind.SERVER_CUT: lambda: self._cut_server(planned.kind),
        }
        if time.monotonic() < self._gives_up_at and not strike[planned.kind]():
            self._after(_AGAIN_SECONDS, lambda: self._strike(planned, rng))

    def _note(self, kind: Kind, what: str, held: Sequence[HeldChunk] = ()) -> Fault:
        fault = Fault(kind=kind, at=time.time(), what=what, held=held)
        self.done.append(fault)
        print(f"{datetime.fromtimestamp(fault.at, UTC).isoformat()} {kind}: {what}", file=self.log, flush=True)
        return fault

    def _held(self, worker: Kept) -> list[HeldChunk]:
        """Return a worker's chunks; none while Postgres is down."""
        with suppress(psycopg.Error):
            return [HeldChunk(*row) for row in self.stack.query(_HELD, worker.process.pid)]
        return []

    def _on_worker(
        self,
        planned: PlannedFault,
        rng: random.Random,
        strike: Callable[[Kept, psutil.Process | None, Sequence[HeldChunk]], None],
    ) -> bool:
        """Inject a fault into a worker that has work, or into its engine; return False if none has any."""
        running = [kept for kept in self.stack.workers if kept.process.is_running and kept.name not in self._stopped]
        for worker in rng.sample(running, len(running)):
            engine, chunks = self.stack.engine_of(worker), self._held(worker)
            has_engine = engine is not None or self.stack.server is not None
            if has_engine and chunks and worker.name not in self._without_engine:
                strike(worker, engine, chunks)
                return True
        return False

    def _kill_worker(self, worker: Kept, _: psutil.Process | None, chunks: Sequence[HeldChunk]) -> None:
        self._note(Kind.WORKER_KILL, worker.name, chunks)
        worker.process.kill()

    def _stop_worker(self, worker: Kept, _: psutil.Process | None, chunks: Sequence[HeldChunk]) -> None:
        fault = self._note(Kind.WORKER_STOP, worker.name, chunks)
        worker.process.send(signal.SIGSTOP)
        self._stopped.add(worker.name)

        def go_on() -> None:
            worker.process.send(signal.SIGCONT)
            self._stopped.discard(worker.name)
            fault.until = time.time()

        self._after(self.lease_seconds + _PAST_LEASE_SECONDS, go_on)

    def _kill_engine(self, worker: Kept, engine: psutil.Process | None, chunks: Sequence[HeldChunk]) -> None:
        self._lose_engine(self._note(Kind.ENGINE_KILL, worker.name, chunks), engine, signal.SIGKILL)

    def _freeze_engine(self, worker: Kept, engine: psutil.Process | None, chunks: Sequence[HeldChunk]) -> None:
        self._lose_engine(self._note(Kind.ENGINE_FREEZE, worker.name, chunks), engine, signal.SIGSTOP)

    def _lose_engine(self, fault: Fault, engine: psutil.Process | None, how: signal.Signals) -> None:
        assert engine is not None, "these faults are planned for workers with an engine of their own"
        with suppress(psutil.NoSuchProcess):
            engine.send_signal(how)
        self._without_engine[fault.what] = fault, engine.pid

    def _look_for_engines(self) -> None:
        """Record when a worker whose engine was lost has a new one."""
        for worker in self.stack.workers:
            if worker.name not in self._without_engine:
                continue
            fault, pid = self._without_engine[worker.name]
            engine = self.stack.engine_of(worker) if worker.process.is_running else None
            if engine is not None and engine.pid != pid:
                fault.until = time.time()
                del self._without_engine[worker.name]

    def _lose_valkey(self, kind: Kind, *, seconds: float) -> bool:
        valkey = self.stack.valkey
        if not valkey.process.is_running:
            return False
        valkey.is_down = True
        valkey.process.kill()
        shutil.rmtree(self.stack.valkey_folder, ignore_errors=True)
        fault = self._note(kind, "all data")

        def go_on() -> None:
            valkey.is_down = False
            fault.until = time.time()

        self._after(seconds, go_on)
        return True

    def _crash_postgres(self, planned: PlannedFault, rng: random.Random) -> bool:
        """Kill a server process, after which the others restart by themselves, or stop all at once."""
        postgres = self.stack.postgres.process
        if not postgres.is_running:
            return False
        if planned.number % 2:
            self._note(planned.kind, "immediate stop")
            postgres.send(signal.SIGQUIT)
            return True
        with suppress(psutil.Error):
            servers = children_of(postgres.pid)
            if servers:
                victim = rng.choice(servers)
                self._note(planned.kind, f"kill -9 of {' '.join(victim.cmdline())[:60]!r}")
                victim.kill()
                return True
        return False

    def _break_connections(self, planned: PlannedFault) -> bool:
        name = ("postgres", "valkey")[planned.number % 2]
        proxy = self.stack.proxies[name]
        if planned.number % 4 < 2:
            num = proxy.cut()
            self._note(planned.kind, f"{num} to {name} cut")
            return True
        fault = self._note(planned.kind, f"to {name} silent for {BLOCK_SECONDS:g} s, then cut")
        proxy.block()

        def go_on() -> None:
            proxy.cut()
            proxy.unblock()
            fault.until = time.time()

        self._after(BLOCK_SECONDS, go_on)
        return True

    def _kill_role(self, planned: PlannedFault) -> bool:
        roles = list(self.stack.roles.values())
        role = roles[planned.number % len(roles)]
        if not role.process.is_running:
            return False
        self._note(planned.kind, role.name)
        role.process.kill()
        return True

    def _kill_server(self, kind: Kind) -> bool:
        server = self._running_server()
        if server is not None:
            self._note(kind, server.name)
            server.process.kill()
        return server is not None

    def _hang_server(self, kind: Kind) -> bool:
        server = self._running_server()
        if server is None:
            return False
        fault, pid = self._note(kind, f"{HANG_SECONDS:g} s"), server.process.pid
        server.process.send(signal.SIGSTOP)

        def go_on() -> None:
            if server.process.pid == pid and server.process.is_running:  # it may have been killed meanwhile
                server.process.send(signal.SIGCONT)
            fault.until = time.time()

        self._after(HANG_SECONDS, go_on)
        return True

    def _cut_server(self, kind: Kind) -> bool:
        server = self._running_server()
        if server is not None:
            self._note(kind, f"{self.stack.proxies[server.name].cut()} cut")
        return server is not None

    def _running_server(self) -> Kept | None:
        server = self.stack.server
        return server if server is not None and server.process.is_running else None

    def _trouble_store(self, planned: PlannedFault) -> bool:
        mood = _MOODS[planned.number % len(_MOODS)]
        methods = _METHODS[planned.number // len(_MOODS) % len(_METHODS)]
        fault = self._note(planned.kind, f"{mood} on {methods}")
        self.stack.s3.trouble(mood, methods=methods)

        def go_on() -> None:
            self.stack.s3.recover()
            fault.until = time.time()

        self._after(TROUBLE_SECONDS, go_on)
        return True
