"""A fake engine that dies on command, and a host on it."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable

from engine.errors import EngineDied, EngineStartError
from engine.params import SamplingParams
from engine.process.messages import Decision, EngineInfo, EngineStats, FinishReason, Progress, TokenDelta
from engine.scheduling.request import NewRequest
from engine.stats import RequestCounters
from workers.engine_host.flights import Owner
from workers.engine_host.host import EngineHost

POISON = 666
BREAKS, BREAKS_ONCE, LASTS = 700, 800, 900
"""Prompts from these on are broken by every engine, or by the first, or never answered by the first."""

_LINES = itertools.count()


class FakeEngine:
    """Echoes each prompt back in one delta when told to work; dies when a poison prompt is among its requests."""

    def __init__(self, *, starts: int = 100) -> None:
        self.generations: list[list[int]] = []  # prompts' first tokens, per life
        self.during_start: Callable[[], None] = lambda: None
        self.aborted_children: list[tuple[int, int]] = []
        self.num_messages = 0
        self.decisions: list[Decision] = []
        self.running_ids: list[int] | None = None
        self._starts_left = starts
        self._is_ready = False
        self._requests: dict[int, list[int]] = {}
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()

    def start(self) -> EngineInfo:
        if self._starts_left == 0:
            raise EngineStartError("no more starts")
        self._starts_left -= 1
        self._requests.clear()
        self._is_ready = False
        self._num_good_rows = 0
        self.generations.append([])
        self.during_start()
        self._is_ready = True
        return EngineInfo(
            num_kv_blocks=8, block_size=16, max_model_len=64, vocab_size=9, eos_token_ids=(1,), device="cpu", dtype="f"
        )

    def add(self, *requests: NewRequest) -> None:
        assert self._is_ready, "the first message of a new engine is its configuration"
        self.num_messages += 1
        for new in requests:
            assert new.request_id not in self._requests, f"request {new.request_id} was handed over twice"
            self._requests[new.request_id] = list(new.prompt_token_ids)
            self.generations[-1].append(new.prompt_token_ids[0])

    def abort(self, request_ids: Iterable[int]) -> None:
        assert self._is_ready, "the first message of a new engine is its configuration"
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def abort_children(self, children: Iterable[tuple[int, int]]) -> None:
        self.aborted_children += children

    def kill(self) -> None:
        self._events.put("kill")

    def work(self) -> None:
        self._events.put("work")

    def report(self, running_ids: list[int]) -> None:
        """Report these requests as having a seat, without working on any."""
        self.running_ids = running_ids
        self._events.put("report")

    def poll(self, timeout_seconds: float) -> Progress | None:
        try:
            event = self._events.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        if event == "report":
            return Progress([], EngineStats(), 1, [], self.running_ids)
        if event == "kill" or any(prompt[0] == POISON for prompt in self._requests.values()):
            raise EngineDied(-9, list(self._requests))
        lasts = LASTS if len(self.generations) == 1 else 2 * LASTS
        done = {request_id: prompt for request_id, prompt in self._requests.items() if prompt[0] < lasts}
        self._requests = {key: prompt for key, prompt in self._requests.items() if key not in done}
        deltas = [self._answer(request_id, prompt) for request_id, prompt in done.items()]
        stats = EngineStats(requests=RequestCounters(num_output_tokens=self._num_good_rows))
        return Progress(deltas, stats, 1, self.decisions)

    def _answer(self, request_id: int, prompt: list[int]) -> TokenDelta:
        if BREAKS <= prompt[0] < (LASTS if len(self.generations) == 1 else BREAKS_ONCE):
            return TokenDelta(
                request_id=request_id,
                finish_reason=FinishReason.ERROR,
                error="NaN",
                good_rows_before=self._num_good_rows,
            )
        self._num_good_rows += 1
        return TokenDelta(request_id=request_id, token_ids=prompt, finish_reason=FinishReason.STOP)

    def close(self) -> None:
        self._requests.clear()


class Recorder:
    """Collects the deltas of one request; `finished` is set with the last."""

    num_output_tokens = 0

    def __init__(self, name: str = "", *, line: tuple[str, int] | None = None) -> None:
        self.name = name
        self.line: tuple[str, int] | None = line or ("batch", next(_LINES))
        self.num_broken = 0
        self.deltas: list[TokenDelta] = []
        self.num_restarts = 0
        self.finished = threading.Event()

    def receive(self, delta: TokenDelta) -> None:
        self.deltas.append(delta)
        if delta.finish_reason is not None:
            self.finished.set()

    def start_over(self) -> None:
        self.num_restarts += 1
        self.deltas.clear()

    def set_aside(self) -> None:
        self.num_broken += 1
        self.start_over()

    def wait(self) -> TokenDelta:
        assert self.finished.wait(10), "the request never finished"
        return self.deltas[-1]


def submit(host: EngineHost, token: int, owner: Owner, *, n: int = 1) -> int:
    """Submit a prompt of one token; return the request's id."""
    new = NewRequest(request_id=host.next_request_id(), prompt_token_ids=[token], params=SamplingParams(n=n))
    assert host.submit((new, owner)) == {}
    return new.request_id


class HostRig:
    """A host on a fake engine; `run_until_done` lets the engine work until every recorder has finished."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.gone: list[str] = []
        self.gone_event = threading.Event()
        self.broken: list[str] = []
        self.seconds = 1.0
        self.host = EngineHost(
            engine, on_gone=self._on_gone, on_broken=self.broken.append, monotonic=lambda: self.seconds
        )
        self.host.start()

    def _on_gone(self, reason: str) -> None:
        self.gone.append(reason)
        self.gone_event.set()

    def submit(self, token: int, name: str = "") -> Recorder:
        recorder = Recorder(name)
        submit(self.host, token, recorder)
        return recorder

    def kill_and_wait(self) -> None:
        """Let the engine die, and return when it starts again."""
        wanted = len(self.engine.generations) + 1
        self.engine.kill()
        for _ in range(1000):
            if len(self.engine.generations) == wanted:
                return
            threading.Event().wait(0.01)
        raise AssertionError("the engine never started again")

    def run_until_done(self, recorders: Iterable[Recorder]) -> None:
        for recorder in recorders:
            for _ in range(100):
                self.seconds += 0.5
                self.engine.work()
                if recorder.finished.wait(0.05):
                    break
