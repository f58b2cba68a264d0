"""Whose keys they are, kept for two seconds: most requests ask no database before they are let in.

Unknown hashes are looked up many at once, in one thread: whoever tries keys takes no turn of those who have one.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import anyio
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import key_changes
from jobs.accounts.keys import Caller, FoundKey, look_up
from jobs.database import transaction
from jobs.errors import ServiceError

KEPT_SECONDS = 2.0
"""How long a key that was revoked may still open, where nobody tells that it was."""
_MOST = 10_000
"""Of known keys that are kept, and as many of unknown ones."""
_AT_ONCE = 500
"""Hashes in one query."""
_PAUSE_SECONDS = 1.0
"""Before the next try to listen."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Question:
    """A hash that is being looked up; whoever asks for it meanwhile waits for the same answer."""

    is_answered: anyio.Event = field(default_factory=anyio.Event)
    found: FoundKey | None = None
    failure: Exception | None = None


class KnownKeys:
    """For use on the event loop alone, while `keep_looking` and `keep_listening` run."""

    def __init__(self, sessions: sessionmaker[Session], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._sessions = sessions
        self._monotonic = monotonic
        self._thread = CapacityLimiter(1)
        self._kept: dict[bool, OrderedDict[str, tuple[FoundKey, float]]] = {True: OrderedDict(), False: OrderedDict()}
        self._questions: dict[str, _Question] = {}
        self._is_asked = anyio.Event()
        self._num_changes = 0
        self.is_listening = False
        """Whether changes are heard, as far as is known."""

    async def caller(self, key_hash: str) -> Caller:
        """Return whose the secret with this hash is. Raises AuthenticationError, and ServiceError without Postgres."""
        found = self._found(key_hash)
        return (found or await self._asked(key_hash)).required()

    def seconds_kept(self, key_hash: str) -> float:
        """Return for how long the next requests with this hash ask no database; 0: they do."""
        ends = (kept[key_hash][1] for kept in self._kept.values() if key_hash in kept)
        return max(0.0, max(ends, default=-math.inf) - self._monotonic())

    def forget(self) -> None:
        """Keep nothing of what was found before now, also of what is being looked up."""
        self._num_changes += 1
        for kept in self._kept.values():
            kept.clear()

    async def keep_looking(self) -> None:
        """Look up what is asked for, all of it at once, for as long as this runs."""
        while True:
            await self._is_asked.wait()
            self._is_asked = anyio.Event()
            while self._questions:
                await self._answer_some()

    async def keep_listening(self, database_url: str) -> None:
        """Forget at each change of a key or a tenant, for as long as this runs; the log tells once that it cannot."""
        is_told = False
        while True:
            try:
                async for _ in key_changes.changes(database_url):
                    self.is_listening, is_told = True, False
                    self.forget()
            except ServiceError as error:
                self.is_listening = False
                if not is_told:
                    logger.warning("not listening to changes of keys reason=%s", error)
                is_told = True
            await anyio.sleep(_PAUSE_SECONDS)

    def _found(self, key_hash: str) -> FoundKey | None:
        for kept in self._kept.values():
            found, until = kept.get(key_hash, (None, -math.inf))
            if self._monotonic() < until:
                kept.move_to_end(key_hash)
                return found
        return None

    async def _asked(self, key_hash: str) -> FoundKey:
        question = self._questions.get(key_hash)
        if question is None:
            question = self._questions[key_hash] = _Question()
            self._is_asked.set()
        await question.is_answered.wait()
        if question.failure is not None:
            raise question.failure
        assert question.found is not None
        return question.found

    async def _answer_some(self) -> None:
        some = dict(islice(self._questions.items(), _AT_ONCE))
        num_changes, asked_at = self._num_changes, self._monotonic()
        try:
            found = await run_sync(self._look_up, list(some), limiter=self._thread)
        except Exception as error:  # noqa: BLE001 - whoever asked gets it, and the next ones are looked up all the same
            for question in some.values():
                question.failure = error
        else:
            for key_hash, question in some.items():
                question.found = found[key_hash]
                if num_changes == self._num_changes:
                    self._keep(key_hash, found[key_hash], asked_at)
        for key_hash, question in some.items():
            del self._questions[key_hash]
            question.is_answered.set()

    def _look_up(self, key_hashes: list[str]) -> dict[str, FoundKey]:
        with transaction(self._sessions) as session:
            return look_up(session, key_hashes)

    def _keep(self, key_hash: str, found: FoundKey, asked_at: float) -> None:
        """Unknown ones only while changes are heard: a new key works at once."""
        if found.caller is None and not self.is_listening:
            return
        kept = self._kept[found.caller is not None]
        kept[key_hash] = found, asked_at + min(KEPT_SECONDS, found.seconds_left)
        kept.move_to_end(key_hash)
        if len(kept) > _MOST:
            kept.popitem(last=False)
