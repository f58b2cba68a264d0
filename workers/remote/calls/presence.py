"""Whether a server is there: asked by check requests while it is away, and when a line gets no usable answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from workers.remote.exchange import Patience
from workers.remote.verdicts import Answered, Away, Busy, Denied, Refused, Verdict

log = logging.getLogger(__name__)


class Presence:
    """Of one server. All methods run on its caller's event loop."""

    def __init__(
        self,
        check: Callable[[], Awaitable[Verdict]],
        *,
        note_busy: Callable[[Busy], None],
        patience: Patience,
        monotonic: Callable[[], float],
    ) -> None:
        """`check` asks a tiny request that any sane server answers; `note_busy` gets the verdict of a busy one."""
        self._check = check
        self._note_busy = note_busy
        self._patience = patience
        self._monotonic = monotonic
        self._since = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[bool] | None = None
        self.away: Away | None = None
        """Why the server answers nothing; None: it answers, as far as is known."""

    @property
    def away_reason(self) -> str | None:
        """Return why the server answers nothing, once it has been so for longer than lines wait."""
        away = self.away
        return away.reason if away is not None and self._has_waited_long() else None

    @property
    def tasks(self) -> list[asyncio.Task[None] | asyncio.Task[bool]]:
        """Return what runs now, to be cancelled in the end."""
        return [task for task in (self._looking, self._checking) if task is not None]

    def note_away(self, away: Away, *, rest_seconds: float = 0.0) -> None:
        """Ask no line until the server answers again; for `rest_seconds` it is not asked, and lines are given back."""
        if self.away is None:
            log.warning("server is away reason=%s", away.reason)
            self.away = away
            self._since = self._monotonic() - (self._patience.away_seconds if rest_seconds else 0)
            self._looking = asyncio.create_task(self._look(rest_seconds or self._patience.look_seconds))

    async def wait_until_back(self) -> Away | None:
        """Wait while the server is away; return that verdict once lines need not wait longer."""
        while (away := self.away) is not None:
            if self._has_waited_long():
                return away
            await asyncio.sleep(min(0.1, self._patience.look_seconds))
        return None

    async def is_sane(self) -> bool:
        """Tell whether the server answers a check request, which says that a failing line is to blame.

        Lines that fail at the same time share a request.
        """
        if self.away is not None:
            return False
        if self._checking is None:
            self._checking = asyncio.create_task(self._check_now())
            self._checking.add_done_callback(self._end_check)
        return await asyncio.shield(self._checking)

    def _has_waited_long(self) -> bool:
        return self._monotonic() - self._since >= self._patience.away_seconds

    async def _look(self, pause_seconds: float) -> None:
        """Ask now and then whether the server is back."""
        while self.away is not None:
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, self._patience.most_look_seconds)
            verdict = await self._check()
            if isinstance(verdict, Answered):
                log.info("server is back, it was away reason=%s", self.away.reason)
                self.away = None
            elif isinstance(verdict, Away | Denied):
                self.away = Away(reason=verdict.reason)

    def _end_check(self, _: asyncio.Task[bool]) -> None:
        self._checking = None

    async def _check_now(self) -> bool:
        verdict = await self._check()
        if isinstance(verdict, Answered):
            return True
        if isinstance(verdict, Busy):
            self._note_busy(verdict)
            return False
        reason = verdict.message if isinstance(verdict, Refused) else verdict.reason
        is_denied = isinstance(verdict, Denied)
        self.note_away(Away(reason=reason if is_denied else f"a check request gets no answer: {reason}"))
        return False
