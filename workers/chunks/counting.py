"""Exact counts of inputs that tenants request before they submit them: in turns of a second, below all real work.

One thread of the lowest priority, which pauses between its turns while chunks are open; long lines wait for room like
those of chunks. Nothing is started or billed.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from engine.errors import InvalidParamsError
from jobs.batches import exact_counts
from jobs.batches.exact_counts import ClaimedCount, Turn
from jobs.database import transaction
from jobs.errors import FencedOutError, NotFoundError, ServiceError
from jobs.lines.body_checks import BodyError
from jobs.lines.reading import LineProblem, LineSplitter, RawLine, parse_line, shown, too_long_problem
from jobs.settings import MIB
from workers.chunks.answerer import LONG_LINE_BYTES
from workers.chunks.engine_parts import EngineParts
from workers.prompt_lengths import Unwanted

log = logging.getLogger(__name__)

TURN_SECONDS = 1.0
"""Length of one tenant's turn; then the counts are written and another tenant has its turn."""
PAUSE_TURNS = 3
"""Pause after a turn while chunks are open, as a multiple of the turn's duration."""
HOLD = timedelta(minutes=1)
"""Time after which a turn is considered lost: one line of a million tokens takes some seconds."""
_LOWEST_PRIORITY = 19


class InputCounter:
    """Counts for as long as the worker runs; `start`, `stop` and `join` are called once each, in this order."""

    def __init__(self, parts: EngineParts, *, model: str, is_busy: Callable[[], bool]) -> None:
        """`is_busy` tells whether chunks are open in this worker."""
        self._prompts = parts.prompts
        self._services = parts.services
        self._model = model
        self._is_busy = is_busy
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="count inputs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the current turn after its current line; there is no other turn."""
        self._stop.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere it would change the whole process's priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        self._count_until_stopped()

    def _count_until_stopped(self) -> None:
        while not self._stop.is_set():
            began = self._services.monotonic()
            has_counted = False
            try:
                has_counted = self.count_once()
            except ServiceError as error:
                log.warning("counting an input failed error=%s", error)
            except Exception:
                log.exception("counting an input failed")  # the thread must survive for the next input
            took = self._services.monotonic() - began
            idle = self._services.settings.claim_alone_seconds * random.uniform(0.5, 1.0)
            self._stop.wait((PAUSE_TURNS * took if self._is_busy() else 0) if has_counted else idle)

    def count_once(self) -> bool:
        """Take a turn at the input whose tenant has waited longest; False if none waits. Raise ServiceError."""
        with transaction(self._services.sessions) as session:
            claimed = exact_counts.claim(session, model=self._model, lease=HOLD)
        if claimed is None:
            return False
        try:
            try:
                turn = self._count(claimed)
            except NotFoundError:
                with transaction(self._services.sessions) as session:
                    exact_counts.fail(session, claimed, "The content of its input is lost.")
                return True
            with transaction(self._services.sessions) as session:
                exact_counts.note_turn(session, claimed, turn, max_listed=self._services.settings.max_listed_errors)
        except FencedOutError as error:
            log.info("turn of an input count ended early count_id=%s reason=%s", claimed.id, error)
        return True

    def _count(self, claimed: ClaimedCount) -> Turn:
        """Count lines until the end of the turn or of the input."""
        storage, settings, began = self._services.storage, self._services.settings, self._services.monotonic()
        tally = _Tally(next_line=claimed.next_line, next_byte=claimed.next_byte)
        splitter = LineSplitter(
            max_line_bytes=settings.max_line_bytes, first_line=claimed.next_line, byte_start=claimed.next_byte
        )
        try:
            for piece in storage.iter_range(claimed.object_key, claimed.next_byte, claimed.size_bytes, chunk_bytes=MIB):
                for line in splitter.feed(piece):
                    self._add(tally, line, claimed)
                    if self._stop.is_set() or self._services.monotonic() - began >= TURN_SECONDS:
                        return tally.turn(is_whole=False)
            for line in splitter.finish():
                self._add(tally, line, claimed)
        except Unwanted:
            return tally.turn(is_whole=False)
        return tally.turn(is_whole=True)

    def _add(self, tally: _Tally, line: RawLine, claimed: ClaimedCount) -> None:
        try:
            input_tokens, output_tokens = self._measure(line, claimed)
        except LineProblem as problem:
            tally.refuse(line, problem)
        else:
            tally.add(line, input_tokens, output_tokens)

    def _measure(self, raw: RawLine, claimed: ClaimedCount) -> tuple[int, int]:
        """Return the tokens of a line's prompts and the most of its answers. Raise LineProblem or Unwanted."""
        settings = self._services.settings
        if raw.content is None:
            raise too_long_problem(raw, max_line_bytes=settings.max_line_bytes)
        line, size = parse_line(raw.content, line_no=raw.line_no, endpoint=claimed.endpoint), len(raw.content)
        if line.model != claimed.model:
            message = f"the model is {shown(line.model)} and the first lines name {shown(claimed.model)}"
            raise LineProblem("model_mismatch", message, line_no=line.line_no, param="body.model")

        def is_wanted() -> bool:
            return not self._stop.is_set()

        try:
            return self._prompts.measure(
                line,
                endpoint=claimed.endpoint,
                default_max_tokens=settings.default_max_tokens,
                is_wanted=is_wanted,
                room=lambda: (
                    nullcontext() if size < LONG_LINE_BYTES else self._services.room.inside(size, is_wanted=is_wanted)
                ),
            )
        except BodyError as error:
            param = "body" if error.param is None else f"body.{error.param}"
            raise LineProblem(error.code, error.message, line_no=line.line_no, param=param) from None
        except InvalidParamsError as error:
            raise LineProblem("invalid_value", str(error), line_no=line.line_no, param="body") from None


@dataclass(slots=True)
class _Tally:
    """The counts of a turn so far."""

    next_line: int
    next_byte: int
    num_lines: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    num_invalid: int = 0
    listed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, line: RawLine, input_tokens: int, output_tokens: int) -> None:
        self._pass(line)
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens

    def refuse(self, line: RawLine, problem: LineProblem) -> None:
        self._pass(line)
        self.num_invalid += 1
        if self.num_invalid <= exact_counts.MAX_LISTED_A_TURN:
            self.listed.append(problem.wire())

    def turn(self, *, is_whole: bool) -> Turn:
        return Turn(
            next_line=self.next_line,
            next_byte=self.next_byte,
            is_whole=is_whole,
            num_lines=self.num_lines,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            num_invalid=self.num_invalid,
            listed=self.listed,
        )

    def _pass(self, line: RawLine) -> None:
        self.num_lines += 1
        self.next_line, self.next_byte = line.line_no + 1, line.byte_end
