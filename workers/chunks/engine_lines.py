"""The lines of one chunk that the engine runs. Knows no results, no lease, no SQL."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator, Sequence

from engine.scheduling.request import NewRequest
from jobs.chunks.leasing import ClaimedChunk
from jobs.states import Priority
from workers.chunks.parts import WorkerParts
from workers.chunks.worker_time import ChunkTime
from workers.engine_host.flights import Owner
from workers.line_run import LineRun
from workers.prompts import PreparedLine

_SUBMITTED_AT_ONCE = 256
"""Requests in one message: other chunks' lines need not wait until thousands of prompts are written."""
ENGINE_PRIORITY = {Priority.URGENT: 0, Priority.NORMAL: 1, Priority.BULK: 2, Priority.OVERFLOW: 3}


class EngineLines:
    """Starts lines, waits for their ends, aborts them. `len()` is how many run."""

    def __init__(self, claim: ClaimedChunk, parts: WorkerParts) -> None:
        self._claim = claim
        self._parts = parts
        self._runs: dict[int, LineRun] = {}  # by line_no
        self._most_tokens = 0
        self._most_picos = 0
        self._finished: queue.SimpleQueue[LineRun] = queue.SimpleQueue()
        self.time = ChunkTime()
        """The chunk's share of the worker's time, while `worker_time` has it open."""

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def most_tokens(self) -> int:
        """Return how many tokens the lines that run may be billed for, at most."""
        return self._most_tokens

    @property
    def most_picos(self) -> int:
        """Return what the lines that run may cost, at most."""
        return self._most_picos

    def most_picos_of(self, prepared: PreparedLine) -> int:
        """Return what a line may cost, at most."""
        return self._claim.prices.cost_picos(
            input_tokens=prepared.num_prompt_tokens, output_tokens=prepared.most_output_tokens
        )

    def start(self, lines: Iterable[tuple[PreparedLine, Sequence[int] | None]]) -> list[tuple[PreparedLine, Exception]]:
        """Hand lines to the engine together, each to go on after the output that an earlier worker left, if any.

        An output without tokens is left of a line that a broken row has ended there. Returns those that cannot be
        handed over, with the reason.
        """
        requests: list[tuple[NewRequest, Owner]] = []
        owners: dict[int, PreparedLine] = {}  # by request id
        failed: dict[int, tuple[PreparedLine, Exception]] = {}  # by line_no
        for prepared, output in lines:
            try:
                own = self._requests(prepared, output)
            except Exception as error:  # noqa: BLE001 - returned; the other lines go on
                failed[prepared.line_no] = prepared, error
            else:
                requests += own
                owners |= dict.fromkeys((new.request_id for new, _ in own), prepared)
        for start in range(0, len(requests), _SUBMITTED_AT_ONCE):
            some = requests[start : start + _SUBMITTED_AT_ONCE]
            for request_id, reason in self._parts.host.submit(*some).items():
                prepared = owners[request_id]
                failed[prepared.line_no] = prepared, reason
        return list(failed.values())

    def _requests(self, prepared: PreparedLine, output: Sequence[int] | None) -> list[tuple[NewRequest, Owner]]:
        """Note a line as running; return its requests and who hears of them."""
        run = LineRun(
            prepared,
            self._parts.tokenizer,
            batch_id=self._claim.batch_id,
            on_done=self._finished.put,
            on_stopped=self._parts.host.abort_child,
            on_computed=self.time.note,
            num_broken=0 if output is None or output else 1,
        )
        if output:
            run.prompt_runs[0].resume(output)
        self._runs[prepared.line_no] = run
        self._most_tokens += prepared.most_tokens
        self._most_picos += self.most_picos_of(prepared)
        requests: list[tuple[NewRequest, Owner]] = []
        for index, (prompt, prompt_run) in enumerate(zip(prepared.prompts, run.prompt_runs, strict=True)):
            new = NewRequest(
                request_id=self._parts.host.next_request_id(),
                prompt_token_ids=prompt,
                params=prepared.params_of(index),
                priority=ENGINE_PRIORITY[Priority(self._claim.priority)],
                deadline=self._claim.expires_at.timestamp(),
                tenant=self._claim.tenant_id,
                weight=self._claim.weight,
                output_token_ids=prompt_run.resumed_token_ids,
            )
            prompt_run.request_id = new.request_id
            requests.append((new, prompt_run))
        return requests

    def wait_finished(self, timeout_seconds: float) -> Iterator[LineRun]:
        """Wait for the end of a line, then yield all that have ended."""
        try:
            yield self._finished.get(timeout=timeout_seconds)
        except queue.Empty:
            return
        yield from self.finished()

    def finished(self) -> Iterator[LineRun]:
        """Yield the lines that have ended since they were last asked for."""
        while not self._finished.empty():
            yield self._finished.get()

    def drop(self, line_no: int) -> None:
        """Forget a line, and abort what the engine still computes of it: what comes after a stop string, or all."""
        run = self._runs.pop(line_no, None)
        if run is not None:
            self._most_tokens -= run.prepared.most_tokens
            self._most_picos -= self.most_picos_of(run.prepared)
            self._abort([run])

    def drop_all(self) -> list[LineRun]:
        """Forget and abort every line, and return them."""
        runs = list(self._runs.values())
        self._runs.clear()
        self._most_tokens = self._most_picos = 0
        self._abort(runs)
        return runs

    def _abort(self, runs: Sequence[LineRun]) -> None:
        request_ids = [request_id for run in runs for request_id in run.request_ids_in_engine]
        if request_ids:
            self._parts.host.abort(request_ids)
