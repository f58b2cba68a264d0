"""An engine that answers each prompt with its own tokens and the end, some a step, and computes nothing."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from engine.config import EngineConfig
from engine.intake import EngineInfo
from engine.outputs import FinishReason, TokenDelta
from engine.scheduling.decisions import Decision
from engine.scheduling.request import NewRequest
from engine.stats import EngineStats

SEATS = 256
STEP_SECONDS = 0.05
TOKENS_A_STEP = 4


class EchoEngine:
    """What `engine.process.child` needs of an engine."""

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
        self._waiting: deque[NewRequest] = deque()
        self._running: dict[int, tuple[NewRequest, int]] = {}  # by id, with how many tokens were answered
        self._ended: list[TokenDelta] = []  # aborted since the last step
        self._stats = EngineStats()

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running or self._ended)

    def add(self, new: NewRequest) -> None:
        self._waiting.append(new)

    def abort(self, request_ids: Iterable[int]) -> None:
        wanted = set(request_ids)
        known = wanted & {*self._running, *(new.request_id for new in self._waiting)}
        self._waiting = deque(new for new in self._waiting if new.request_id not in wanted)
        for request_id in known:
            self._running.pop(request_id, None)
            self._ended.append(TokenDelta(request_id=request_id, finish_reason=FinishReason.ABORT))

    def abort_children(self, children: Iterable[tuple[int, int]]) -> None:
        self.abort(request_id for request_id, _ in children)

    def step(self) -> list[TokenDelta]:
        """Give every seat its next tokens."""
        time.sleep(STEP_SECONDS)
        while self._waiting and len(self._running) < SEATS:
            new = self._waiting.popleft()
            self._running[new.request_id] = new, len(new.output_token_ids)
        end_token = self.info.eos_token_ids[0]
        deltas, self._ended = self._ended, []
        for request_id, (new, num_answered) in list(self._running.items()):
            answer = (*new.prompt_token_ids, end_token)
            num_now = min(num_answered + TOKENS_A_STEP, len(answer))
            delta = TokenDelta(request_id=request_id, token_ids=list(answer[num_answered:num_now]))
            if num_now == len(answer):
                delta.finish_reason = FinishReason.STOP
                del self._running[request_id]
                self._stats.requests.num_finished += 1
            else:
                self._running[request_id] = new, num_now
            deltas.append(delta)
        self._stats.scheduler.num_steps += 1
        return deltas

    def stats(self) -> EngineStats:
        self._stats.load.num_running, self._stats.load.num_waiting = len(self._running), len(self._waiting)
        self._stats.load.max_num_seqs = SEATS
        return self._stats

    def new_decisions(self) -> list[Decision]:
        return []
