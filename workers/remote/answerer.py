"""Answers lines with an OpenAI-compatible server."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from weakref import WeakSet

from jobs.chunks.fleet import RunningLines
from jobs.chunks.leasing import ClaimedChunk
from workers.chunks.answerer import Stats
from workers.remote.lines import RemoteLines, RemoteParts
from workers.remote.probing.prober import Prober

log = logging.getLogger(__name__)


class RemoteAnswerer:
    """The `Answerer` of a worker whose engine is a server of somebody else."""

    def __init__(self, parts: RemoteParts, *, max_model_len: int, prober: Prober | None = None) -> None:
        """`prober` keeps the abilities of `parts` current, from the start on."""
        self._parts = parts
        self._prober = prober
        self._max_model_len = max_model_len
        self._numbers = itertools.count()
        self._opened: WeakSet[RemoteLines] = WeakSet()
        self._lock = threading.Lock()

    def start(self, *, is_busy: Callable[[], bool]) -> int:
        self._parts.caller.start()
        if self._prober is not None:
            self._prober.start()
        engine = self._parts.engine
        log.info("server ready engine=%s version=%s seats=%d", engine.kind, engine.version, self._parts.caller.limit)
        return self._max_model_len

    def open(self, claim: ClaimedChunk) -> RemoteLines:
        lines = RemoteLines(claim, self._parts, number=next(self._numbers))
        with self._lock:
            self._opened.add(lines)
        return lines

    def stats(self) -> Stats:
        caller = self._parts.caller
        metrics = {
            "num_requests_running": caller.num_running,
            "num_requests_waiting": caller.num_waiting,
            "seats": caller.limit,
        }
        return Stats(
            metrics=metrics,
            running_lines=self._running(),
            away_reason=caller.away_reason,
            engine=self._parts.abilities.engine,
        )

    def _running(self) -> dict[str, RunningLines]:
        """Return the open lines by batch, as far as the server computes so many."""
        num_left = self._parts.caller.num_running
        open_lines: Counter[str] = Counter()
        with self._lock:
            for lines in self._opened:
                open_lines[lines.claim.batch_id] += lines.num_open
        running = {}
        for batch_id, num_open in open_lines.items():
            if num := min(num_open, num_left):
                running[batch_id] = RunningLines(num_lines=num)
                num_left -= num
        return running

    def drain(self) -> None: ...

    def close(self) -> None:
        if self._prober is not None:
            self._prober.close()
        self._parts.caller.close()
