"""Asks one server for the answers of lines: seats, the one loop that asks again, cool-downs, looks at a server away.

A line that gets no usable answer is asked again and then fails alone, but only if the server answers a check request
each time: a failure of the server itself is never a line's.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from workers.remote.exchange import Address, Patience, exchange, open_client
from workers.remote.pace import Pace
from workers.remote.reading import Awaited
from workers.remote.seats import Order, Seats
from workers.remote.verdicts import Answered, Away, Busy, Counts, Denied, Refused, Spoilt, Verdict

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 4
"""How often a line is asked that gets no usable answer, or is denied one, while the server answers a check request."""
MAX_LOSSES = 10
"""How often it is asked that the server fails with a check request, too, before it is given back."""
DENIED = "denied_by_engine"
"""The code of a line that the server denies, as by 403, while it answers others."""
MAX_BUSY = 10
"""How often a server that answers others may say to one line that it is busy, before that counts as an attempt."""
MAX_COOL_DOWN_SECONDS = 900.0
"""Longest pause that a server may ask for by Retry-After."""
_FIRST_COOL_DOWN_SECONDS = 0.5
_MOST_OWN_COOL_DOWN_SECONDS = 30.0
_TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One line's request."""

    path: str
    body: dict[str, Any]
    expected: Awaited
    order: Order
    seconds_left: float
    """Until the deadline of the line, when it is submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a call: an answer, a refusal, `Spoilt` for a line that fails, `Away` for one to be given back."""

    verdict: Answered | Refused | Spoilt | Away
    wasted: tuple[Counts, ...] = ()
    """What the server counted for answers that were thrown away."""


class Caller:
    """Owns a thread with an event loop and the connections to one server."""

    def __init__(
        self,
        address: Address,
        pace: Pace,
        check: Call,
        *,
        patience: Patience,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`check` is a tiny request that any sane server answers: it tells a bad line from a bad server."""
        self._address = address
        self._pace = pace
        self._check = check
        self._patience = patience
        self._monotonic = monotonic
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="remote calls", daemon=True)
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._client: httpx.AsyncClient | None = None
        self._seats = Seats(pace, monotonic=monotonic)
        self._num_good = 0
        self._num_busy = 0  # in a row
        self._away: Away | None = None
        self._away_since = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[bool] | None = None
        self._ticked_at = monotonic()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Cancel all calls, close all connections and end the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def submit(self, key: object, call: Call, on_end: Callable[[Outcome], None]) -> None:
        """Start a call; `on_end` is called once from the caller's thread, unless the key is cancelled."""
        self._loop.call_soon_threadsafe(self._begin, key, call, on_end)

    def cancel(self, keys: Iterable[object]) -> None:
        """Drop calls and close their connections, so that the server stops computing."""
        self._loop.call_soon_threadsafe(self._cancel, list(keys))

    @property
    def away_reason(self) -> str | None:
        """Return why the server answers nothing, once it has been so for longer than lines wait."""
        away = self._away
        return away.reason if away is not None and self._has_waited_long() else None

    @property
    def num_running(self) -> int:
        return self._seats.num_taken

    @property
    def num_waiting(self) -> int:
        return max(0, len(self._tasks) - self._seats.num_taken)

    @property
    def limit(self) -> int:
        return self._pace.limit

    def seconds_silent(self) -> float:
        """Return for how long the event loop has not run, which happens only if this thread is stuck."""
        return self._monotonic() - self._ticked_at

    # --- on the event loop ---

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._client = open_client(self._address, patience=self._patience)
        self._tick()
        self._loop.run_forever()

    def _tick(self) -> None:
        self._ticked_at = self._monotonic()
        self._loop.call_later(_TICK_SECONDS, self._tick)

    async def _close(self) -> None:
        others = (self._looking, self._checking)
        tasks = [*self._tasks.values(), *(task for task in others if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    def _begin(self, key: object, call: Call, on_end: Callable[[Outcome], None]) -> None:
        task = self._tasks[key] = self._loop.create_task(self._finish(call, on_end))
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def _cancel(self, keys: Iterable[object]) -> None:
        for key in keys:
            if (task := self._tasks.get(key)) is not None:
                task.cancel()

    async def _finish(self, call: Call, on_end: Callable[[Outcome], None]) -> None:
        try:
            outcome = await self._outcome(call)
        except Exception as error:
            log.exception("call failed unexpectedly")  # the line must have an end all the same
            outcome = Outcome(verdict=Spoilt(reason=f"an internal error, {type(error).__name__}, ended the request"))
        on_end(outcome)

    async def _outcome(self, call: Call) -> Outcome:
        """Ask until there is an end: the only loop that asks again."""
        deadline = self._monotonic() + call.seconds_left
        wasted: list[Counts] = []
        num_attempts = num_losses = num_busy = 0
        num_good_before = self._num_good
        while True:
            verdict = await self._ask_in_turn(call, deadline=deadline)
            if isinstance(verdict, Busy):
                num_busy += 1
                if num_busy < MAX_BUSY or self._num_good == num_good_before:
                    continue
                verdict, num_busy = Spoilt(reason=verdict.reason), 0
            if isinstance(verdict, Spoilt) and verdict.paid is not None:
                wasted.append(verdict.paid)
            if isinstance(verdict, Away):
                if self.away_reason is not None:
                    return Outcome(verdict=verdict, wasted=tuple(wasted))
            elif not isinstance(verdict, Spoilt | Denied):
                return Outcome(verdict=verdict, wasted=tuple(wasted))
            elif not await self._is_sane():  # it is the server's fault, and no attempt of the line's
                num_losses += 1
                if num_losses >= MAX_LOSSES:
                    return Outcome(verdict=Away(reason=verdict.reason), wasted=tuple(wasted))
            elif (num_attempts := num_attempts + 1) >= MAX_ATTEMPTS:
                return Outcome(verdict=_end_of(verdict), wasted=tuple(wasted))
            else:
                await asyncio.sleep(self._pause_seconds(num_attempts))

    async def _ask_in_turn(self, call: Call, *, deadline: float) -> Verdict:
        """Wait for a seat, ask once, and let the pace and the seats learn from the verdict."""
        if (away := await self._wait_until_back()) is not None:
            return away
        await self._seats.take(call.order)
        began_at, is_full = self._monotonic(), self._seats.is_full
        try:
            if self._away is not None:  # meanwhile
                return self._away
            verdict = await self._ask(call)
        finally:
            self._seats.give_back()
        self._learn(verdict, began_at=began_at, is_full=is_full, deadline=deadline)
        return verdict

    async def _ask(self, call: Call) -> Verdict:
        assert self._client is not None, "start() first"
        return await exchange(self._client, call.path, call.body, expected=call.expected, patience=self._patience)

    def _learn(self, verdict: Verdict, *, began_at: float, is_full: bool, deadline: float) -> None:
        now = self._monotonic()
        if isinstance(verdict, Answered):
            self._num_good += 1
            self._num_busy = 0
            counts = verdict.counts or Counts(prompt_tokens=0, completion_tokens=0)
            self._pace.note_answer(
                began_at=began_at,
                now=now,
                prompt_tokens=counts.prompt_tokens,
                completion_tokens=counts.completion_tokens,
                is_full=is_full,
            )
        elif isinstance(verdict, Busy):
            self._num_busy += 1
            self._pace.note_busy(began_at=began_at, now=now)
            self._cool_down(verdict, seconds=self._cool_down_seconds(verdict, seconds_left=deadline - now))
        elif isinstance(verdict, Spoilt) and now - began_at >= self._patience.answer_seconds:
            self._pace.note_busy(began_at=began_at, now=now)
        elif isinstance(verdict, Away):
            self._note_away(verdict)

    def _cool_down(self, busy: Busy, *, seconds: float) -> None:
        """Ask nothing for this long; for a long pause the lines are given back, as other workers may have room."""
        if seconds <= self._patience.away_seconds:
            self._seats.close_for(seconds)
        else:
            self._note_away(Away(reason=f"{busy.reason}; it asks for {seconds:.0f} s"), rest_seconds=seconds)

    def _cool_down_seconds(self, busy: Busy, *, seconds_left: float) -> float:
        """Return how long nothing is asked: what the server says, but so that the line is asked again in its time."""
        if busy.retry_after_seconds is not None:
            half = max(seconds_left / 2, _FIRST_COOL_DOWN_SECONDS)
            return min(busy.retry_after_seconds, MAX_COOL_DOWN_SECONDS, half)
        return self._pause_seconds(self._num_busy)

    @staticmethod
    def _pause_seconds(num: int) -> float:
        """Return a pause that doubles with each failure in a row, by chance up to a half shorter."""
        longest = min(_MOST_OWN_COOL_DOWN_SECONDS, _FIRST_COOL_DOWN_SECONDS * 2 ** min(num - 1, 10))
        return longest * random.uniform(0.5, 1.0)

    # --- a server that is away ---

    def _note_away(self, away: Away, *, rest_seconds: float = 0.0) -> None:
        """Ask no line until the server answers again; for `rest_seconds` it is not asked, and lines are given back."""
        if self._away is None:
            log.warning("server is away reason=%s", away.reason)
            self._away = away
            self._away_since = self._monotonic() - (self._patience.away_seconds if rest_seconds else 0)
            self._looking = self._loop.create_task(self._look(rest_seconds or self._patience.look_seconds))

    def _has_waited_long(self) -> bool:
        return self._monotonic() - self._away_since >= self._patience.away_seconds

    async def _wait_until_back(self) -> Away | None:
        """Wait while the server is away; return that verdict once lines need not wait longer."""
        while (away := self._away) is not None:
            if self._has_waited_long():
                return away
            await asyncio.sleep(min(0.1, self._patience.look_seconds))
        return None

    async def _look(self, pause_seconds: float) -> None:
        """Ask now and then whether the server is back."""
        while self._away is not None:
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, self._patience.most_look_seconds)
            verdict = await self._ask(self._check)
            if isinstance(verdict, Answered):
                log.info("server is back, it was away reason=%s", self._away.reason)
                self._away = None
            elif isinstance(verdict, Away | Denied):
                self._away = Away(reason=verdict.reason)

    async def _is_sane(self) -> bool:
        """Tell whether the server answers a check request, which says that a failing line is to blame.

        Lines that fail at the same time share a request.
        """
        if self._away is not None:
            return False
        if self._checking is None:
            self._checking = self._loop.create_task(self._check_now())
            self._checking.add_done_callback(self._end_check)
        return await asyncio.shield(self._checking)

    def _end_check(self, _: asyncio.Task[bool]) -> None:
        self._checking = None

    async def _check_now(self) -> bool:
        verdict = await self._ask(self._check)
        if isinstance(verdict, Answered):
            return True
        if isinstance(verdict, Busy):
            now = self._monotonic()
            self._learn(verdict, began_at=now, is_full=False, deadline=now + self._check.seconds_left)
            return False
        reason = verdict.message if isinstance(verdict, Refused) else verdict.reason
        is_denied = isinstance(verdict, Denied)
        self._note_away(Away(reason=reason if is_denied else f"a check request gets no answer: {reason}"))
        return False


def _end_of(verdict: Spoilt | Denied) -> Refused | Spoilt:
    """Return the end of a line after its last attempt."""
    if isinstance(verdict, Spoilt):
        return verdict
    return Refused(status_code=400, message=f"the engine denies this line: {verdict.reason}", code=DENIED)
