"""Asks one server for the answers of lines: seats, the one loop that asks again, cool-downs.

A line that gets no usable answer is asked again and then fails alone, but only if the server answers a check request
each time: a failure of the server itself is never a line's.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpx

from workers.remote.calls.call import Call
from workers.remote.calls.outcomes import End, Outcome, Tries
from workers.remote.calls.pace import Pace
from workers.remote.calls.presence import Presence
from workers.remote.calls.seats import Seats
from workers.remote.exchange import Address, Patience, exchange, open_client
from workers.remote.statuses import TOO_LONG
from workers.remote.verdicts import Answered, Away, Busy, Counts, Denied, Refused, Spoilt, Unloaded, Unpaid, Verdict

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 4
"""How often a line is asked that gets no usable answer, or is denied one, while the server answers a check request."""
MAX_LOSSES = 10
"""How often it is asked that the server fails with a check request, too, before it is given back."""
NOT_FOUND = 404
"""The status of a name that the server does not have."""
DENIED = "denied_by_engine"
"""The code of a line that the server denies, as by 403, while it answers others."""
MAX_COOL_DOWN_SECONDS = 900.0
"""Longest pause that a server may ask for by Retry-After."""
_FIRST_COOL_DOWN_SECONDS = 0.5
_MOST_OWN_COOL_DOWN_SECONDS = 30.0
_TICK_SECONDS = 1.0
_WITHDRAW_SECONDS = 5.0


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
        self._payable: set[asyncio.Task[Any] | None] = set()  # those of them that the server may have to be paid for
        self._client: httpx.AsyncClient | None = None
        self._seats = Seats(pace, monotonic=monotonic)
        self._num_good = 0
        self._num_busy = 0  # in a row
        self._presence = Presence(
            lambda: self._ask(self._check), note_busy=self._note_busy_check, patience=patience, monotonic=monotonic
        )
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

    def withdraw(self, keys: Iterable[object]) -> frozenset[object]:
        """Drop calls as `cancel` does, and return those that cost nothing, as far as is known in time.

        Of these the server was not asked, or it has refused them for lack of room or rights.
        """
        free = asyncio.run_coroutine_threadsafe(self._withdraw(list(keys)), self._loop)
        try:
            return free.result(_WITHDRAW_SECONDS)
        except TimeoutError:
            return frozenset()

    @property
    def away_reason(self) -> str | None:
        """Return why the server answers nothing, once it has been so for longer than lines wait."""
        return self._presence.away_reason

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
        tasks = [*self._tasks.values(), *self._presence.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    def _begin(self, key: object, call: Call, on_end: Callable[[Outcome], None]) -> None:
        task = self._tasks[key] = self._loop.create_task(self._finish(call, on_end))
        task.add_done_callback(lambda _: self._forget(key, task))

    def _forget(self, key: object, task: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)
        self._payable.discard(task)

    def _cancel(self, keys: Iterable[object]) -> None:
        for key in keys:
            if (task := self._tasks.get(key)) is not None:
                task.cancel()

    async def _withdraw(self, keys: Sequence[object]) -> frozenset[object]:
        self._cancel(keys)
        return frozenset(key for key in keys if key in self._tasks and self._tasks[key] not in self._payable)

    async def _finish(self, call: Call, on_end: Callable[[Outcome], None]) -> None:
        try:
            outcome = await self._outcome(call)
        except Exception as error:
            log.exception("call failed unexpectedly")  # the line must have an end all the same
            verdict = Spoilt(reason=f"an internal error, {type(error).__name__}, ended the request")
            outcome = Outcome(verdict=verdict, num_uncounted=MAX_ATTEMPTS + MAX_LOSSES)
        on_end(outcome)

    async def _outcome(self, call: Call) -> Outcome:
        """Ask until there is an end: the only loop that asks again."""
        deadline = self._monotonic() + call.seconds_left
        tries = Tries(num_good_before=self._num_good)
        while True:
            num_paid = tries.num_paid
            verdict = tries.noted(await self._ask_in_turn(call, deadline=deadline), num_good=self._num_good)
            if not tries.num_paid and not isinstance(verdict, Answered):
                self._payable.discard(asyncio.current_task())
            if isinstance(verdict, Refused) and verdict.code == TOO_LONG and (shorter := call.shortened()) is not None:
                call = shorter
                continue
            end = await self._end(call, verdict, tries)
            if end is None and tries.num_paid > num_paid and call.permit is not None:
                end = None if await asyncio.to_thread(call.permit.may_repeat) else Unpaid()
            if end is not None:
                return tries.outcome(end)

    async def _end(self, call: Call, verdict: Verdict | Unpaid, tries: Tries) -> End | None:
        """Return the end of a call after this verdict; None: it is asked again."""
        if isinstance(verdict, Busy | Away):
            return verdict if isinstance(verdict, Away) and self.away_reason is not None else None
        if not isinstance(verdict, Spoilt | Denied):
            return verdict
        if not await self._presence.is_sane():  # it is the server's fault, and no attempt of the line's
            tries.num_losses += 1
            return Away(reason=verdict.reason) if tries.num_losses >= MAX_LOSSES else None
        if isinstance(verdict, Denied) and verdict.status == NOT_FOUND and call.adapter is not None:
            return Unloaded(adapter=call.adapter)
        tries.num_attempts += 1
        if tries.num_attempts >= MAX_ATTEMPTS:
            return _end_of(verdict)
        await asyncio.sleep(self._pause_seconds(tries.num_attempts))
        return None

    async def _ask_in_turn(self, call: Call, *, deadline: float) -> Verdict | Unpaid:
        """Wait for a seat, ask once, and let the pace and the seats learn from the verdict."""
        if (away := await self._presence.wait_until_back()) is not None:
            return away
        await self._seats.take(call.order)
        began_at, is_full = self._monotonic(), self._seats.is_full
        try:
            if self._presence.away is not None:  # meanwhile
                return self._presence.away
            if call.permit is not None and not await asyncio.to_thread(call.permit.may_send):
                return Unpaid()
            self._payable.add(asyncio.current_task())
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
            self._presence.note_away(verdict)

    def _note_busy_check(self, busy: Busy) -> None:
        now = self._monotonic()
        self._learn(busy, began_at=now, is_full=False, deadline=now + self._check.seconds_left)

    def _cool_down(self, busy: Busy, *, seconds: float) -> None:
        """Ask nothing for this long; for a long pause the lines are given back, as other workers may have room."""
        if seconds <= self._patience.away_seconds:
            self._seats.close_for(seconds)
        else:
            self._presence.note_away(Away(reason=f"{busy.reason}; it asks for {seconds:.0f} s"), rest_seconds=seconds)

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


def _end_of(verdict: Spoilt | Denied) -> Refused | Spoilt:
    """Return the end of a line after its last attempt."""
    if isinstance(verdict, Spoilt):
        return verdict
    return Refused(status_code=400, message=f"the engine denies this line: {verdict.reason}", code=DENIED)
