"""Keeps one engine alive: submits requests, routes tokens to their owners, and survives the engine's death.

A request that kills engines is found by running suspects in ever smaller groups, so that it fails alone. An engine that
dies whatever it runs fails no request: it must survive a harmless probe before requests are suspected further. A
request that ends by a broken row waits for a new engine, which starts when this one is idle or considered faulty.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Protocol

from engine.errors import EngineDied, EngineStartError
from engine.process.messages import Decision, EngineInfo, EngineStats, FinishReason, Progress, TokenDelta
from engine.process.silence import LongestSilence
from engine.scheduling.decisions import outcome
from engine.scheduling.request import NewRequest
from jobs.chunks.fleet import RunningLines
from workers.engine_host.broken import BrokenRequests
from workers.engine_host.flights import Flight, Owner, lines_of, make_probe

log = logging.getLogger(__name__)

MAX_CRASHES = 3
"""Engine deaths after which a request that ran alone at the last one fails."""
MAX_FRUITLESS_DEATHS = 3
"""Engine deaths without a finished request in between after which the engine is considered faulty, not a request. The
last of them is the death of a probe, which no request can cause."""
WEDGED_SECONDS = 30.0
"""Silence after which an engine is restarted, unless it has been about as silent before: see STEPS_SILENT."""
STEPS_SILENT = 5
"""Allowed silence, as a multiple of the longest recent one: a step may be a long prefill on a slow device."""
PATIENCE_GROWTH = 4
"""Factor by which the allowed silence grows with each death without a finished request: the first step may be the
slowest, and an engine that is ended in it every time makes no progress."""
_POLL_SECONDS = 0.5


class Engine(Protocol):
    """The methods of `engine.process.parent.EngineProcess` that the host needs; tests pass a fake."""

    def start(self) -> EngineInfo: ...
    def add(self, *requests: NewRequest) -> None: ...
    def abort(self, request_ids: Iterable[int]) -> None: ...
    def abort_children(self, children: Iterable[tuple[int, int]]) -> None: ...
    def poll(self, timeout_seconds: float) -> Progress | None: ...
    def close(self) -> None: ...


class EngineHost:
    """Owns the engine process. Every method may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        on_gone: Callable[[str], None],
        on_death: Callable[[], None] = lambda: None,
        on_broken: Callable[[str], None] = lambda reason: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_gone(reason)` is called once, when the engine cannot be restarted or dies whatever it runs.

        Requests are not notified of that: their owners release them. `on_death` is called at every death.
        `on_broken(reason)` is called when line after line ends by a broken row; the engine is restarted once it is
        idle.
        """
        self._engine = engine
        self._on_gone = on_gone
        self._on_death = on_death
        self._monotonic = monotonic
        self._ids = count(1)
        self._lock = threading.RLock()
        self._in_engine: dict[int, Flight] = {}
        self._isolated: set[int] = set()  # those of them that newcomers wait for; scanning all would take long
        self._suspects: deque[list[Flight]] = deque()  # groups that run one after another, each alone
        self._held: list[Flight] = []  # newcomers, which wait while the engine restarts and while suspects run
        self._broken = BrokenRequests(on_broken=on_broken, monotonic=monotonic)
        self._num_fruitless_deaths = 0  # since the last finished request
        self._is_restarting = False  # the new engine must not be called before it is ready
        self._last_progress = monotonic()
        self._longest_silence = LongestSilence()
        self._stats = EngineStats()
        self._running_ids: frozenset[int] = frozenset()
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)

    def start(self) -> EngineInfo:
        """Start the engine and wait until it is warm. Raise EngineStartError with the reason."""
        info = self._engine.start()
        self._last_progress = self._monotonic()
        self._reader.start()
        return info

    def close(self) -> None:
        """Stop the reader, then the engine; unfinished requests report nothing more."""
        self._closing.set()
        if self._reader.is_alive():
            self._reader.join()
        self._engine.close()

    @property
    def stats(self) -> EngineStats:
        return self._stats

    def running_lines(self) -> dict[str, RunningLines]:
        """Return by batch how many of its lines run in the engine, and the tokens of its unfinished lines."""
        with self._lock:
            return lines_of(list(self._in_engine.values()), self._running_ids)

    def seconds_since_progress(self) -> float:
        """Return how long the engine has been silent; even an idle engine reports every second.

        A restart does not count: loading a large model takes minutes, and `start` has its own timeout.
        """
        return 0.0 if self._is_restarting else self._monotonic() - self._last_progress

    @property
    def is_wedged(self) -> bool:
        """Tell whether the engine has been silent for longer than its steps take, so that waiting is pointless."""
        return self.seconds_since_progress() > self._patience_seconds

    @property
    def _patience_seconds(self) -> float:
        unseen = WEDGED_SECONDS * PATIENCE_GROWTH**self._num_fruitless_deaths
        return max(unseen, STEPS_SILENT * self._longest_silence.at(self._monotonic()))

    def next_request_id(self) -> int:
        """Return an id that no other request has."""
        return next(self._ids)

    def submit(self, *requests: tuple[NewRequest, Owner]) -> dict[int, Exception]:
        """Submit requests, which costs less for several together. The owner receives a refusal as a delta.

        Return by request id the errors of requests that cannot be sent at all; those are dropped.
        """
        with self._lock:
            flights = [Flight(new, owner, new.params.n) for new, owner in requests]
            if self._is_restarting or self._suspects or self._isolated or self._broken.is_condemned:
                self._held += flights
                return {}
            return self._add(flights)

    def abort(self, request_ids: Iterable[int]) -> None:
        """Drop requests: their owners receive nothing more."""
        dropped = set(request_ids)
        with self._lock:
            in_engine = [request_id for request_id in dropped if self._remove(request_id)]
            self._held = [flight for flight in self._held if flight.request_id not in dropped]
            self._broken.drop(dropped)
            for group in self._suspects:
                group[:] = [flight for flight in group if flight.request_id not in dropped]
            if self._is_restarting:
                return  # they ended with the old engine and do not run again
            if in_engine:
                self._call_engine(lambda: self._engine.abort(in_engine))
            self._next_suspects()

    def abort_child(self, request_id: int, index: int) -> None:
        """Stop computing one child of a request; the others continue. The child still reports its end."""
        with self._lock:
            if request_id in self._in_engine and not self._is_restarting:
                self._call_engine(lambda: self._engine.abort_children([(request_id, index)]))

    def _add(self, flights: Sequence[Flight]) -> dict[int, Exception]:
        """Send requests to the engine; return the errors of those that cannot be sent, by request id."""
        if not flights:
            return {}
        for flight in flights:
            self._in_engine[flight.request_id] = flight
            if flight.crashes > 1 or flight.is_probe:
                self._isolated.add(flight.request_id)
            flight.open_children = flight.request.params.n
        try:
            self._call_engine(lambda: self._engine.add(*(flight.request for flight in flights)))
        except Exception as error:  # noqa: BLE001 - returned; the other requests continue
            for flight in flights:
                self._remove(flight.request_id)
            if len(flights) == 1:
                return {flights[0].request_id: error}
            return {key: reason for flight in flights for key, reason in self._add([flight]).items()}
        return {}

    def _remove(self, request_id: int) -> Flight | None:
        """Remove and return a request that is in the engine; None if it is not."""
        self._isolated.discard(request_id)
        return self._in_engine.pop(request_id, None)

    def _let_in(self, flights: Sequence[Flight]) -> None:
        """Submit requests that had to wait; the owner receives the errors that `submit` would have returned."""
        errors = self._add(flights)
        for flight in flights:
            if flight.request_id in errors:
                flight.fail(f"The request cannot be handed to the engine: {errors[flight.request_id]}")

    def _call_engine(self, call: Callable[[], None]) -> None:
        try:
            call()
        except EngineDied:
            # The reader sees the death in poll() and runs everything in `_in_engine` again.
            log.debug("engine gone during a call")

    def _read(self) -> None:
        while not self._closing.is_set():
            try:
                progress = self._engine.poll(_POLL_SECONDS)
                if progress is None and self.is_wedged:
                    raise EngineDied(None, list(self._in_engine), f"silent for {self._patience_seconds:g} s")
            except EngineDied as death:
                if not self._closing.is_set() and not self._recover(death):
                    return
                continue
            if progress is not None:
                now = self._monotonic()
                self._longest_silence.note(now - self._last_progress, now=now)
                self._last_progress = now
                self._stats = progress.stats
                if progress.running_ids is not None:
                    self._running_ids = frozenset(progress.running_ids)
                self._log_decisions(progress.decisions)
                self._route(progress.outputs)
            if self._wants_new_engine() and not self._renew():
                return

    def _log_decisions(self, decisions: Sequence[Decision]) -> None:
        """Log why requests wait or were preempted; before the outputs, as the last output removes its request."""
        for decision in decisions:
            name = self._name_of(decision.request_id)
            flight = self._in_engine.get(decision.request_id)
            choice = f" choice {decision.index + 1}" if flight is not None and flight.request.params.n > 1 else ""
            log.info("%s%s %s", name, choice, outcome(decision, self._name_of))

    def _name_of(self, request_id: int) -> str:
        flight = self._in_engine.get(request_id)
        return f"request {request_id}" if flight is None else flight.owner.name

    def _route(self, deltas: Sequence[TokenDelta]) -> None:
        for delta in deltas:
            with self._lock:
                flight = self._in_engine.get(delta.request_id)
                if flight is None:
                    continue  # aborted meanwhile
                if delta.finish_reason is not None:
                    if flight.is_probe or delta.finish_reason is not FinishReason.ERROR:  # a refused probe is answered
                        self._num_fruitless_deaths = 0
                    # An error ends the whole request; otherwise each of its n children ends by itself.
                    flight.open_children -= 1
                    if flight.open_children == 0 or delta.finish_reason is FinishReason.ERROR:
                        self._remove(delta.request_id)
                        self._next_suspects()
                if delta.good_rows_before is not None and self._broken.add(flight, delta.good_rows_before):
                    continue  # its owner receives only its next end
            flight.owner.receive(delta)

    def _wants_new_engine(self) -> bool:
        with self._lock:
            return self._broken.want_new_engine(is_idle=not (self._in_engine or self._suspects))

    def _renew(self) -> bool:
        """Start a new engine; requests in the old one start over. Return False if it does not start."""
        log.warning("engine restarts after broken rows waiting=%d", len(self._broken))
        self._end_life()
        if not self._start_again():
            return False
        with self._lock:
            self._let_in(self._begin_life())
            self._next_suspects()
        return True

    def _recover(self, death: EngineDied) -> bool:
        """Restart the engine and its interrupted requests. Return False if it does not start."""
        num_requests = self._end_life()
        log.error(
            "engine died, restarting exit_code=%s requests=%d reason=%s", death.exit_code, num_requests, death.reason
        )
        self._on_death()
        if num_requests:  # an engine that dies idle has failed no request
            self._num_fruitless_deaths += 1
        if self._num_fruitless_deaths >= MAX_FRUITLESS_DEATHS:
            self._on_gone(f"the engine died {self._num_fruitless_deaths} times without one finished request: {death}")
            return False
        if not self._start_again():
            return False
        with self._lock:
            interrupted = self._begin_life()
            for flight in interrupted:
                flight.crashes += 1
            self._regroup(interrupted)
        return True

    def _end_life(self) -> int:
        """End the engine and make newcomers wait for the next one; return how many requests it had."""
        self._engine.close()  # also unblocks a call that a silent engine does not read and that holds the lock
        with self._lock:  # also waits for a call in progress, which must not reach the new engine
            self._is_restarting = True
            self._broken.end_life(self._stats)
            return len(self._in_engine)

    def _start_again(self) -> bool:
        """Start the engine; return False if it does not start."""
        try:
            self._engine.start()
        except EngineStartError as error:
            log.error("engine does not start reason=%s", error)
            self._on_gone(str(error))
            return False
        self._last_progress = self._monotonic()
        return True

    def _begin_life(self) -> list[Flight]:
        """Reset the state for a new engine; return the requests of the last one, which start over.

        Requests that waited for a new engine join the newcomers.
        """
        self._is_restarting = False
        self._stats, self._running_ids = EngineStats(), frozenset()
        interrupted = list(self._in_engine.values())
        self._in_engine.clear()
        self._isolated.clear()
        self._held += self._broken.pop_all()
        for flight in interrupted:
            flight.owner.start_over()
        return interrupted

    def _regroup(self, interrupted: list[Flight]) -> None:
        """Decide how requests that a death interrupted run again: once all together, then in halves, finally alone."""
        is_probe_due = self._num_fruitless_deaths == MAX_FRUITLESS_DEATHS - 1
        if len(interrupted) == 1 and interrupted[0].crashes >= MAX_CRASHES:
            self._give_up(interrupted[0])
        elif interrupted and max(flight.crashes for flight in interrupted) == 1:
            # A first death says little about the requests: it may have been a kill from outside.
            if is_probe_due:  # it runs first, or a request that kills engines would pass for a faulty engine
                self._suspects.appendleft(interrupted)
            else:
                self._let_in(interrupted)
        else:
            middle = (len(interrupted) + 1) // 2
            self._suspects.extendleft(group for group in (interrupted[middle:], interrupted[:middle]) if group)
        if is_probe_due:
            self._suspects.appendleft([make_probe(self.next_request_id())])
        self._next_suspects()

    def _give_up(self, flight: Flight) -> None:
        log.error("request gave up request_id=%d crashes=%d", flight.request_id, flight.crashes)
        message = f"The engine died {flight.crashes} times while it ran this request, the last time with no other."
        flight.fail(message)

    def _next_suspects(self) -> None:
        """When the engine is empty, run the next group of suspects; without any, admit the newcomers."""
        while self._suspects and not self._in_engine:
            self._let_in(self._suspects.popleft())
        if not (self._suspects or self._isolated or self._broken.is_condemned):
            newcomers, self._held = self._held, []
            self._let_in(newcomers)
