"""An engine that answers each prompt with its own tokens and the end token, some per step, and computes nothing."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.loop.intake import EngineInfo
from engine.outputs import FinishReason, TokenDelta
from engine.scheduling.decisions import Decision
from engine.scheduling.request import NewRequest
from engine.stats import EngineStats
from lab.no_compute import NUM_SEATS, STEP_SECONDS, TOKENS_A_STEP


@dataclass(slots=True)
class _Answer:
    """A request that is being answered: with `length` of these tokens in all."""

    new: NewRequest
    token_ids: list[int]
    length: int
    num_generated: int
    num_reported: int

    @property
    def finish_reason(self) -> FinishReason | None:
        if self.num_generated < self.length:
            return None
        return FinishReason.STOP if self.length == len(self.token_ids) else FinishReason.LENGTH

    def deltas(self) -> list[TokenDelta]:
        """Return the tokens that are not reported yet, for each child."""
        token_ids = self.token_ids[self.num_reported : self.num_generated]
        self.num_reported = self.num_generated
        return [
            TokenDelta(
                request_id=self.new.request_id, index=index, token_ids=token_ids[:], finish_reason=self.finish_reason
            )
            for index in range(self.new.params.n)
        ]


class EchoEngine:
    """The engine interface that `engine.process.child` needs; max_tokens may end an answer before its prompt ends."""

    def __init__(self, config: EngineConfig) -> None:
        model = json.loads(Path(config.model, "config.json").read_text())
        self.info = EngineInfo(
            num_kv_blocks=65_536,
            block_size=16,
            max_model_len=model["max_position_embeddings"],
            vocab_size=model["vocab_size"],
            eos_token_ids=(model["eos_token_id"],),
            device="cpu",
            dtype="none",
        )
        self._step_seconds = float(os.environ[STEP_SECONDS])
        self._tokens_a_step = int(os.environ[TOKENS_A_STEP])
        self._num_seats = int(os.environ[NUM_SEATS])
        self._waiting: deque[NewRequest] = deque()
        self._running: dict[int, _Answer] = {}
        self._ended: list[TokenDelta] = []  # aborted since the last step
        self._stats = EngineStats()

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running or self._ended)

    def answer_to(self, new: NewRequest) -> Sequence[int]:
        """Return the tokens of the answer, without the end token."""
        return new.prompt_token_ids

    def add(self, new: NewRequest) -> None:
        self._waiting.append(new)

    def abort(self, request_ids: Iterable[int]) -> None:
        ids = set(request_ids)
        known = ids & {*self._running, *(new.request_id for new in self._waiting)}
        self._waiting = deque(new for new in self._waiting if new.request_id not in ids)
        for request_id in known:
            answer = self._running.pop(request_id, None)
            self._ended += [] if answer is None else answer.deltas()
            self._ended.append(TokenDelta(request_id=request_id, finish_reason=FinishReason.ABORT))

    def abort_children(self, children: Iterable[tuple[int, int]]) -> None:
        self.abort(request_id for request_id, _ in children)

    def step(self) -> list[TokenDelta]:
        """Generate the next tokens of every seat."""
        if self._step_seconds:
            time.sleep(self._step_seconds)
        while self._waiting and len(self._running) < self._num_seats:
            new = self._waiting.popleft()
            token_ids = [*self.answer_to(new), self.info.eos_token_ids[0]]
            most, num_given = new.params.max_tokens, len(new.output_token_ids)
            length = len(token_ids) if most is None else min(len(token_ids), most)
            self._running[new.request_id] = _Answer(new, token_ids, length, num_given, num_given)
        deltas, self._ended = self._ended, []
        for request_id in list(self._running):
            deltas += self._advance(request_id)
        self._stats.scheduler.num_steps += 1
        return deltas

    def release(self) -> list[TokenDelta]:
        """Return the tokens that steps have held."""
        deltas: list[TokenDelta] = []
        for answer in self._running.values():
            deltas += answer.deltas()
        return deltas

    def _advance(self, request_id: int) -> list[TokenDelta]:
        """Generate the next tokens of a request; return the deltas that are due, as the engine does."""
        answer = self._running[request_id]
        answer.num_generated = min(answer.num_generated + self._tokens_a_step, answer.length)
        has_ended = answer.finish_reason is not None
        if has_ended:
            del self._running[request_id]
            self._stats.requests.num_finished += 1
        return answer.deltas() if has_ended or answer.new.params.stop else []

    def stats(self) -> EngineStats:
        self._stats.load.num_running, self._stats.load.num_waiting = len(self._running), len(self._waiting)
        self._stats.load.max_num_seqs = self._num_seats
        return self._stats

    def new_decisions(self) -> list[Decision]:
        return []

    def running_request_ids(self) -> list[int]:
        return list(self._running)
