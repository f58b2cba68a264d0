"""The lines of one chunk that our engine answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial

from engine.errors import InvalidParamsError
from engine.models.adapters.files import CANNOT_BE_USED
from engine.outputs import SequenceTimes
from engine.scheduling.request import NewRequest
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.decisions import Kind
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.body_checks import BodyError
from jobs.lines.output_lines import output_line, response_id
from jobs.lines.reading import RawLine, parse_line
from jobs.states import Priority
from workers.chunks.answerer import ChunkLines, Ended, Output, Room, Unanswered
from workers.chunks.engine_decisions import EngineDecisions
from workers.chunks.engine_parts import EngineParts
from workers.chunks.line_results import FailureMaker
from workers.chunks.scores import ChunkScores
from workers.chunks.worker_time import ChunkTime
from workers.engine_host.flights import Owner
from workers.line_run import LineRun
from workers.prompts import PreparedLine

_SUBMITTED_AT_ONCE = 256
"""Requests in one message, so that other chunks' lines need not wait until thousands of prompts are written."""
ENGINE_PRIORITY = {Priority.URGENT: 0, Priority.NORMAL: 1, Priority.BULK: 2, Priority.OVERFLOW: 3}
_ENGINE_EVENTS = tuple(field.name for field in fields(SequenceTimes))

log = logging.getLogger(__name__)

OnEnd = Callable[[Ended[PreparedLine]], None]


class EngineLines(ChunkLines[PreparedLine]):
    """Submits lines, receives their ends and aborts them; all chunks of a worker share its engine."""

    def __init__(self, claim: ClaimedChunk, parts: EngineParts) -> None:
        super().__init__(claim, FailureMaker(claim.batch_id))
        self._parts = parts
        self._adapter = claim.server_model
        self.fingerprint = parts.model_fingerprint
        if self._adapter is not None:
            self.fingerprint += f" {parts.adapters.identity(self._adapter)}"
        self.engine = parts.engine
        self._runs: dict[int, LineRun] = {}  # by line_no
        self._scores = ChunkScores(parts.scores)
        self._decisions = EngineDecisions(parts.services.monotonic)
        self._time = ChunkTime()
        self._created = int(time.time())

    @contextmanager
    def opened(self) -> Iterator[None]:
        with self._parts.worker_time.divided_with(self._time):
            try:
                yield
            finally:
                self._scores.leave_all()

    def prepare(self, raw: RawLine, *, is_wanted: Callable[[], bool], room: Room) -> PreparedLine:
        claim = self.claim
        assert raw.content is not None
        line = parse_line(raw.content, line_no=raw.line_no, endpoint=claim.endpoint, is_filled=claim.is_filled)
        try:
            return self._parts.prompts.prepare(
                line,
                endpoint=claim.endpoint,
                batch_id=claim.batch_id,
                tenant=claim.tenant_id,
                is_wanted=is_wanted,
                room=room,
            )
        except InvalidParamsError as error:
            raise BodyError(None, str(error)) from None

    # --- room for log-probabilities of prompts ---

    def admit(self, lines: Sequence[PreparedLine]) -> Sequence[bool]:
        return [self._scores.enter(line.line_no, line.num_prompt_scores) for line in lines]

    def leave(self, line_nos: Sequence[int]) -> None:
        self._scores.leave(line_nos)

    def is_room_scarce(self, line_no: int) -> bool:
        return self._scores.holds(line_no)  # it is large, and others may wait for its room

    def wait_for_room(self, timeout_seconds: float) -> None:
        self._scores.wait(timeout_seconds)

    # --- the engine ---

    def submit(self, lines: Sequence[tuple[PreparedLine, Output | None]], on_end: OnEnd) -> Mapping[int, Exception]:
        requests: list[tuple[NewRequest, Owner]] = []
        line_nos: dict[int, int] = {}  # by request id
        failed: dict[int, Exception] = {}
        for line, output in lines:
            try:
                own = self._requests(line, output, on_end)
            except Exception as error:  # noqa: BLE001 - returned; the other lines continue
                failed[line.line_no] = error
            else:
                requests += own
                line_nos |= dict.fromkeys((new.request_id for new, _ in own), line.line_no)
        for start in range(0, len(requests), _SUBMITTED_AT_ONCE):
            some = requests[start : start + _SUBMITTED_AT_ONCE]
            for request_id, reason in self._parts.host.submit(*some).items():
                failed[line_nos[request_id]] = reason
        return failed

    def _requests(self, line: PreparedLine, output: Output | None, on_end: OnEnd) -> list[tuple[NewRequest, Owner]]:
        """Record a line as running; return its requests with their owners."""
        run = LineRun(
            line,
            self._parts.tokenizer,
            batch_id=self.claim.batch_id,
            on_done=lambda run: on_end(Ended(line=line, make=partial(self._made, run), events=partial(_events, run))),
            on_stopped=self._parts.host.abort_child,
            on_computed=self._time.note,
            num_broken=0 if output is None or output else 1,
        )
        if output:
            run.prompt_runs[0].resume(output)
        self._runs[line.line_no] = run
        requests: list[tuple[NewRequest, Owner]] = []
        for index, (prompt, prompt_run) in enumerate(zip(line.prompts, run.prompt_runs, strict=True)):
            new = NewRequest(
                request_id=self._parts.host.next_request_id(),
                prompt_token_ids=prompt,
                params=line.params_of(index),
                priority=ENGINE_PRIORITY[Priority(self.claim.priority)],
                deadline=self.claim.expires_at.timestamp(),
                tenant=self.claim.tenant_id,
                weight=self.claim.weight,
                output_token_ids=prompt_run.resumed_token_ids,
                adapter=self._adapter,
            )
            prompt_run.request_id = new.request_id
            requests.append((new, prompt_run))
        return requests

    def drop(self, line_no: int) -> None:
        """Drop a line and abort what the engine still computes of it: output after a stop string, or everything."""
        run = self._runs.pop(line_no, None)
        if run is not None:
            self._abort([run])

    def drop_all(self) -> Mapping[int, Output]:
        runs, self._runs = list(self._runs.values()), {}
        self._abort(runs)
        return {run.prepared.line_no: output for run in runs if (output := run.checkpoint) or run.num_broken}

    def _abort(self, runs: Iterable[LineRun]) -> None:
        request_ids = [request_id for run in runs for request_id in run.request_ids_in_engine]
        if request_ids:
            self._parts.host.abort(request_ids)

    @property
    def is_wedged(self) -> bool:
        return self._parts.host.is_wedged

    # --- answers ---

    def _made(self, run: LineRun) -> LineResult | Unanswered:
        """Return the answer or failure of a line that has ended; a resumed line that failed starts over."""
        line = run.prepared
        self._decisions.count(run)
        if run.error is None:
            return self._answer(run)
        if self._adapter is not None and run.error.startswith(CANNOT_BE_USED):
            self._parts.adapters.refuse(self._adapter, run.error)
            return Unanswered.LEFT  # a worker that can read it answers the line
        if run.is_resumed and not run.is_broken:  # the output that it resumed from may be the cause
            log.warning("resumed line failed, its prompt runs batch_id=%s line=%d", self.claim.batch_id, line.line_no)
            return Unanswered.AGAIN
        return self.failures.failure(line.line_no, line.custom_id, message=run.error)

    def _answer(self, run: LineRun) -> LineResult:
        line, batch_id = run.prepared, self.claim.batch_id
        prefix = "chatcmpl" if line.endpoint == CHAT_ENDPOINT else "cmpl"
        body_id = response_id(prefix, batch_id, line.line_no)
        answer = self._parts.answers.make(run, response_id=body_id, created=self._created, adapter=self.claim.adapter)
        return LineResult(
            line_no=line.line_no,
            status_code=200,
            line=output_line(batch_id, line.line_no, line.custom_id, status_code=200, body=answer.body),
            input_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.cached_tokens,
            output_tokens=answer.usage.completion_tokens,
            reasoning_tokens=answer.usage.reasoning_tokens,
            is_truncated=answer.is_truncated,
        )

    def pop_microseconds(self) -> int:
        return self._parts.worker_time.take(self._time)

    def pop_decisions(self, *, is_last: bool) -> Mapping[Kind, int]:
        return self._decisions.pop_due(is_last=is_last)


def _events(run: LineRun) -> list[tuple[str, float]]:
    times = [prompt.times for prompt in run.prompt_runs if prompt.times is not None]
    return [(name, getattr(each, name)) for each in times for name in _ENGINE_EVENTS]
