"""A cache of keys and their owners for two seconds, so that most requests are admitted without the database.

Unknown hashes are looked up together, in one thread, so that guessing keys does not slow down valid ones.
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
"""How long a revoked key may still work if its notification is lost."""
_MOST = 10_000
"""Most known keys in the cache, and most unknown ones."""
_AT_ONCE = 500
"""Hashes in one query."""
_PAUSE_SECONDS = 1.0
"""Pause before listening is retried."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Question:
    """A hash that is being looked up; all requests for it wait for the same answer."""

    is_answered: anyio.Event = field(default_factory=anyio.Event)
    key: FoundKey | None = None
    failure: Exception | None = None


class KnownKeys:
    """The cache. Use it only on the event loop, while `keep_looking` and `keep_listening` run."""

    def __init__(self, sessions: sessionmaker[Session], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._sessions = sessions
        self._monotonic = monotonic
        self._thread = CapacityLimiter(1)
        self._kept: dict[bool, OrderedDict[str, tuple[FoundKey, float]]] = {True: OrderedDict(), False: OrderedDict()}
        self._questions: dict[str, _Question] = {}
        self._is_asked = anyio.Event()
        self._num_changes = 0
        self.is_listening = False
        """Whether notifications of changes arrive, as far as is known."""

    async def caller(self, key_hash: str) -> Caller:
        """Return the owner of this secret. Raise AuthenticationError, or ServiceError without Postgres."""
        key = self._cached(key_hash)
        return (key or await self._asked(key_hash)).required()

    def seconds_kept(self, key_hash: str) -> float:
        """Return for how long requests with this hash need no database; 0 if they do."""
        ends = (kept[key_hash][1] for kept in self._kept.values() if key_hash in kept)
        return max(0.0, max(ends, default=-math.inf) - self._monotonic())

    def forget(self) -> None:
        """Drop everything that was found before now, lookups in progress included."""
        self._num_changes += 1
        for kept in self._kept.values():
            kept.clear()

    async def keep_looking(self) -> None:
        """Look up requested hashes, all at once, until cancelled."""
        while True:
            await self._is_asked.wait()
            self._is_asked = anyio.Event()
            while self._questions:
                await self._answer_some()

    async def keep_listening(self, database_url: str) -> None:
        """Clear the cache at each change of a key or a tenant, until cancelled; a failure is logged once."""
        is_logged = False
        while True:
            try:
                async for _ in key_changes.changes(database_url):
                    self.is_listening, is_logged = True, False
                    self.forget()
            except ServiceError as error:
                self.is_listening = False
                if not is_logged:
                    logger.warning("not listening to changes of keys reason=%s", error)
                is_logged = True
            await anyio.sleep(_PAUSE_SECONDS)

    def _cached(self, key_hash: str) -> FoundKey | None:
        for kept in self._kept.values():
            key, until = kept.get(key_hash, (None, -math.inf))
            if self._monotonic() < until:
                kept.move_to_end(key_hash)
                return key
        return None

    async def _asked(self, key_hash: str) -> FoundKey:
        question = self._questions.get(key_hash)
        if question is None:
            question = self._questions[key_hash] = _Question()
            self._is_asked.set()
        await question.is_answered.wait()
        if question.failure is not None:
            raise question.failure
        assert question.key is not None
        return question.key

    async def _answer_some(self) -> None:
        some = dict(islice(self._questions.items(), _AT_ONCE))
        num_changes, asked_at = self._num_changes, self._monotonic()
        try:
            keys = await run_sync(self._look_up, list(some), limiter=self._thread)
        except Exception as error:  # noqa: BLE001 - passed to the waiting requests; later lookups continue
            for question in some.values():
                question.failure = error
        else:
            for key_hash, question in some.items():
                question.key = keys[key_hash]
                if num_changes == self._num_changes:
                    self._keep(key_hash, keys[key_hash], asked_at)
        for key_hash, question in some.items():
            del self._questions[key_hash]
            question.is_answered.set()

    def _look_up(self, key_hashes: list[str]) -> dict[str, FoundKey]:
        with transaction(self._sessions) as session:
            return look_up(session, key_hashes)

    def _keep(self, key_hash: str, key: FoundKey, asked_at: float) -> None:
        """Cache a key; an unknown one only while notifications arrive, so that a new key works at once."""
        if key.caller is None and not self.is_listening:
            return
        kept = self._kept[key.caller is not None]
        kept[key_hash] = key, asked_at + min(KEPT_SECONDS, key.seconds_left)
        kept.move_to_end(key_hash)
        if len(kept) > _MOST:
            kept.popitem(last=False)
