"""Tests of the engine's real loop with random requests, aborts and sizes, on a device that detects wrong slots."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import engine.config as config_module
from benchmarks.static_batching import StaticScheduler
from engine.build import assemble
from engine.config import Admission, EngineConfig, PolicyName, Speculation
from engine.device.choice import resolve
from engine.errors import InvalidRequestError
from engine.loop.compute import StepRunner
from engine.loop.core import Engine
from engine.loop.intake import resolve_max_tokens
from engine.models.config import CheckpointConfig
from engine.outputs import FinishReason, TokenDelta, TokenLogprobs
from engine.params import SamplingParams
from engine.scheduling.blocks import BlockPool
from engine.scheduling.scheduler import Scheduler
from engine.speculation.lookup_drafter import LookupDrafter
from engine.structured import StructuredOutput
from tests.engine.builders import FreeRows, new_request

from .hashing_device import VOCAB_SIZE, HashingRunner, UnhurriedGrammars, expected_end

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlap": {"overlap": True},
    "static": {},
    "speculation": {"speculation": Speculation.NGRAM},
}
MODEL = SimpleNamespace(
    path=Path("none"), vocab_size=VOCAB_SIZE, eos_token_ids=(), max_model_len=1_000_000, angles_change_after=None
)


@dataclass
class Asked:
    """A request, and what was reported of each of its children."""

    prompt: list[int]
    params: SamplingParams
    output: list[int]
    reported: dict[int, list[TokenDelta]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)

    def append(self, delta: TokenDelta) -> None:
        deltas = self.reported.setdefault(delta.index, [])
        assert not deltas or deltas[-1].finish_reason is None, "something is reported after the end"
        deltas.append(delta)


class Trial:
    """One engine of random sizes, and random things done to it."""

    def __init__(self, seed: int, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = random.Random(f"{seed} {mode}")
        self.scheduler_type = StaticScheduler if mode == "static" else Scheduler
        rng = self.rng
        block_size, num_blocks = rng.choice([1, 2, 3, 4, 8]), rng.choice([8, 12, 20, 40, 100])
        max_num_seqs = rng.choice([1, 2, 3, 6, 12])
        config = EngineConfig(
            model="none",
            dtype="float32",
            num_kv_blocks=num_blocks,
            block_size=block_size,
            max_model_len=num_blocks * block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(max_num_seqs, rng.choice([1, 2, 5, 9, 16, 33, 64])),
            enable_prefix_caching=rng.random() < 0.75,
            admission=rng.choice(list(Admission)),
            policy=rng.choice(list(PolicyName)),
            max_passed_over=rng.choice([1, 2, 5, 64]),
            **MODES[mode],
        )
        self.runner = HashingRunner(config, num_host_blocks=rng.choice([0, 0, 4, 30]))
        self.engine = self._make(config, monkeypatch)
        self.now = 0.0
        self.asked: dict[int, Asked] = {}
        self.stems = [self._tokens(rng.randint(1, max(1, num_blocks * block_size // 2))) for _ in range(3)]

    def _make(self, config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> Engine:
        monkeypatch.setattr(config_module, "_MIN_SAMPLED_ROWS", self.rng.choice([1, 4, 256]))
        resolved = resolve(config, cast(CheckpointConfig, MODEL), torch.device("cpu"))
        engine = assemble(resolved, cast(StepRunner, self.runner), scheduler_type=self.scheduler_type)
        engine._grammars = UnhurriedGrammars(self.rng)  # type: ignore[assignment]
        engine.scheduler.pace._clock = lambda: self.now
        if config.speculation is not Speculation.OFF:
            engine.loop.drafter = LookupDrafter(max_drafts=8, min_match=1, max_match=8, clock=FreeRows())
        if self.rng.random() < 0.3:
            engine.scheduler.pool._digest = lambda content: bytes([sum(content) % 4])  # collides all the time
        return engine

    def run(self) -> None:
        actions: list[Callable[[], None]] = [self.add, self.abort, self.abort_child, self.step]
        for action in self.rng.choices(actions, weights=[35, 7, 8, 50], k=self.rng.randint(5, 60)):
            action()
        for _ in range(20_000):
            if not self.engine.has_work:
                break
            self._step()
        assert not self.engine.has_work, "the engine comes to no end"
        scheduler = self.engine.scheduler
        assert scheduler.pool.num_used == 0
        assert self.runner.swap is None or self.runner.swap.num_free == self.runner.swap.num_blocks
        assert self.runner.most_rows <= scheduler.config.max_sampled_rows
        for asked in self.asked.values():
            self._check(asked)

    def add(self) -> None:
        rng = self.rng
        stem = rng.choice(self.stems)
        shared = stem[: rng.choice([0, len(stem), rng.randint(0, len(stem))])]
        prompt = [*shared, *self._tokens(rng.randint(0 if shared else 1, 4))]
        max_tokens, has_grammar = rng.choice([None, 1, 2, 5, 20, 60]), rng.random() < 0.25
        params = SamplingParams(
            n=rng.choice([1, 1, 1, 2, 4]),
            seed=rng.randrange(1_000),
            max_tokens=max_tokens,
            min_tokens=0 if has_grammar or max_tokens in (1, 2) else rng.choice([0, 0, 3]),
            stop_token_ids=rng.sample(range(VOCAB_SIZE), rng.choice([0, 0, 1])),
            logprobs=rng.choice([None, None, 0]),
            prompt_logprobs=rng.choice([None, None, None, 1]),
            structured=StructuredOutput(regex="any") if has_grammar else None,
        )
        asked = Asked(prompt, params, self._earlier_output(prompt, params))
        request_id = len(self.asked)
        self.asked[request_id] = asked
        self.engine.add(
            new_request(
                request_id,
                prompt,
                params=params,
                priority=rng.randrange(3),
                deadline=None if rng.random() < 0.5 else self.now + rng.randrange(80),
                tenant=rng.choice(["", "a", "b"]),
                output_token_ids=asked.output,
            )
        )

    def _earlier_output(self, prompt: list[int], params: SamplingParams) -> list[int]:
        """Return what an earlier run generated; for most requests there was none."""
        max_tokens = self._max_tokens(prompt, params)
        if params.n > 1 or max_tokens is None or self.rng.random() < 0.7:
            return []
        assert params.seed is not None
        whole, _ = expected_end(prompt, [], seed=params.seed, params=params, max_tokens=max_tokens)
        return whole[: self.rng.randint(0, len(whole) - 1)]

    def abort(self) -> None:
        if self.asked:
            request_id = self.rng.choice(list(self.asked))
            self.engine.abort([request_id])
            self.asked[request_id].aborted |= set(range(self.asked[request_id].params.n))

    def abort_child(self) -> None:
        if self.asked:
            request_id = self.rng.choice(list(self.asked))
            index = self.rng.randrange(self.asked[request_id].params.n)
            self.engine.abort_children([(request_id, index)])
            self.asked[request_id].aborted.add(index)

    def step(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            if self.engine.has_work:
                self._step()

    def _step(self) -> None:
        self.now += 1.0
        released = self.engine.release() if self.rng.random() < 0.3 else []
        for delta in (*released, *self.engine.step()):
            self.asked[delta.request_id].append(delta)
        self.engine.scheduler.check_integrity()

    def _check(self, asked: Asked) -> None:
        max_tokens = self._max_tokens(asked.prompt, asked.params)
        assert set(asked.reported) == set(range(asked.params.n)), "a child never ended"
        for index, deltas in asked.reported.items():
            if max_tokens is None:
                assert deltas[-1].finish_reason is FinishReason.ERROR
            else:
                self._check_child(asked, index, max_tokens)

    def _check_child(self, asked: Asked, index: int, max_tokens: int) -> None:
        params, deltas = asked.params, asked.reported[index]
        assert params.seed is not None
        expected, reason = expected_end(
            asked.prompt, asked.output, seed=params.seed + index, params=params, max_tokens=max_tokens
        )
        tokens = [token for delta in deltas for token in delta.token_ids]
        if params.logprobs is not None:
            assert [entry.rank for delta in deltas for entry in delta.logprobs or []] == tokens
        if deltas[-1].finish_reason is FinishReason.ABORT:
            assert index in asked.aborted
            assert tokens == expected[: len(tokens)]
        else:
            assert (tokens, deltas[-1].finish_reason) == (expected, reason)
            scored = [delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None]
            is_scored = index == 0 and params.prompt_logprobs is not None
            assert [ranks(one) for one in scored] == ([asked.prompt[1:]] if is_scored else [])

    def _max_tokens(self, prompt: list[int], params: SamplingParams) -> int | None:
        try:
            return resolve_max_tokens(prompt, params, self.engine.info)
        except InvalidRequestError:
            return None

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCAB_SIZE) for _ in range(count)]


def ranks(entries: list[TokenLogprobs]) -> list[int]:
    return [entry.rank for entry in entries]


def run_trials(seeds: range, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in seeds:
        Trial(seed, mode, monkeypatch).run()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first_seed", range(0, 60, 10))
def test_every_request_gets_its_own_tokens_whatever_happens_around_it(
    first_seed: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_trials(range(first_seed, first_seed + 10), mode, monkeypatch)


def test_a_block_that_is_found_by_its_digest_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def match(pool: BlockPool, chain: Any, token_ids: Any, max_blocks: int) -> tuple[list[int], int]:
        found = [pool._by_digest.get(chain.at(index, token_ids)[0]) for index in range(max_blocks)]
        blocks = found[: found.index(None)] if None in found else found
        return [block for block in blocks if block is not None], pool._serial_of[blocks[-1] or 0] if blocks else 0

    monkeypatch.setattr(BlockPool, "match", match)
    with pytest.raises(AssertionError):
        run_trials(range(30), "plain", monkeypatch)
