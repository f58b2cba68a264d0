"""Engines over tiny models, requests of every kind, and ways to run them to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from engine.build import build_engine
from engine.config import EngineConfig, Speculation
from engine.loop.core import Engine
from engine.loop.runner import Runner
from engine.outputs import FinishReason, TokenDelta
from engine.params import SamplingParams
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import NewRequest, Sequence
from engine.stats import SpeculationCounters
from tests.engine.tiny_models import TinyModel


def make_engine(model: TinyModel, **settings: Any) -> Engine:
    """Build an engine in fp32 on the CPU, with room for every request of a tiny model."""
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "max_num_seqs": 16,
        "max_num_batched_tokens": 128,
        "num_kv_blocks": 400,
        "warm_up": False,
    }
    return build_engine(EngineConfig(model=str(model.path), **{**defaults, **settings}))


def runner_of(engine: Engine) -> Runner:
    """Return the runner of an engine that runs a model."""
    assert isinstance(engine._runner, Runner)
    return engine._runner


def new_request(request_id: int, prompt_token_ids: list[int], params: SamplingParams, **asked: Any) -> NewRequest:
    """Return a request with its names left out where an engine's tests always give them."""
    return NewRequest(request_id=request_id, prompt_token_ids=prompt_token_ids, params=params, **asked)


def run_all(engine: Engine, model: TinyModel, **extra: Any) -> list[list[int]]:
    """Generate greedily for every prompt in one go; return the tokens in order."""
    outputs: list[list[int]] = [[] for _ in model.prompts]
    for index, (prompt, limit) in enumerate(zip(model.prompts, model.max_tokens, strict=True)):
        engine.add(new_request(index, prompt, params=SamplingParams(temperature=0.0, max_tokens=limit, **extra)))
    while engine.has_work:
        for delta in engine.step():
            assert delta.finish_reason is not FinishReason.ERROR, delta.error
            outputs[delta.request_id] += delta.token_ids
        engine.scheduler.check_integrity()
    return outputs


KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 2},
    {"seed": 3, "n": 3},
    {"seed": 4, "top_p": 0.9, "min_p": 0.01, "logprobs": 0},
    {"seed": 5, "top_k": 9, "frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2},
    {"temperature": 0.0, "allowed_token_ids": [5, 6, 7, 8], "bad_words_token_ids": [(5, 6), (7,)]},
    {"temperature": 0.0, "logit_bias": {7: 99.0}, "bad_words_token_ids": [(7, token) for token in range(256)], "n": 2},
    {"temperature": 0.0, "stop_token_ids": list(range(0, 256, 2)), "min_tokens": 4},
    {"temperature": 0.0, "prompt_logprobs": 1, "max_tokens": 0},
    {"seed": 6, "prompt_logprobs": 2, "ignore_eos": False, "logit_bias": {2: 4.0}},
    {"temperature": 0.0, "max_tokens": 1},
]
"""Every way in which a token depends on those before it, and every way to end."""

Children = dict[tuple[int, int], TokenDelta]
"""What each child of each request got: (request id, index) to one delta that holds all of it."""


def add_all(engine: Engine, model: TinyModel) -> None:
    """Add requests of every kind, three of each."""
    for request_id in range(3 * len(KINDS)):
        kind = {"max_tokens": 6 + request_id % 9, "ignore_eos": True, **KINDS[request_id % len(KINDS)]}
        engine.add(
            new_request(
                request_id, model.prompts[request_id % 12], params=SamplingParams(**kind), priority=request_id % 3
            )
        )


def run_to_end(engine: Engine) -> Children:
    """Run until nothing is left; return all that each child got, as one delta."""
    found: Children = {}
    while engine.has_work:
        for delta in engine.step():
            child = (delta.request_id, delta.index)
            if child in found:
                assert found[child].finish_reason is None, "more after its end"
                found[child].extend(delta)
            else:
                found[child] = delta
        engine.scheduler.check_integrity()
    assert engine.scheduler.pool.num_used == 0
    return found


def deltas_of(engine: Engine) -> dict[tuple[int, int], list[TokenDelta]]:
    """Run until nothing is left, and nothing be held after; return what each child of each request was given."""
    deltas: dict[tuple[int, int], list[TokenDelta]] = {}
    while engine.has_work:
        for delta in engine.step():
            deltas.setdefault((delta.request_id, delta.index), []).append(delta)
        engine.scheduler.check_integrity()
    assert engine.scheduler.pool.num_used == 0
    return deltas


def tokens_of(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def outputs_of(engine: Engine) -> dict[tuple[int, int], list[int]]:
    """Run until nothing is left; return the tokens of each child of each request."""
    return {child: tokens_of(deltas) for child, deltas in deltas_of(engine).items()}


def greedy(max_tokens: int = 8, **extra: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **extra})


class FreeRows:
    """A clock for which every step takes one second, drafts or none, and a search takes no time.

    It is read before the search, after it, and after the step.
    """

    def __init__(self) -> None:
        self._num_readings = 0

    def __call__(self) -> float:
        self._num_readings += 1
        return float(self._num_readings // 3)


_Guess = Callable[[list[int], int], list[int]]


class GivenDrafter:
    """A Drafter that guesses as a function says, and learns nothing."""

    def __init__(self, guess: _Guess) -> None:
        self.counters = SpeculationCounters()
        self._guess = guess

    def propose(self, sequences: Iterable[Sequence], room: int) -> None:
        for sequence in sequences:
            if sequence.has_prompt_computed:
                left = sequence.max_total_tokens - sequence.num_tokens - 1
                sequence.draft_token_ids = self._guess(sequence.token_ids, left)[: max(0, left)]

    def learn(self, plan: StepPlan, num_kept: list[int]) -> None:
        pass


def run_with_drafts(model: TinyModel, params: SamplingParams, guess: _Guess, **settings: Any) -> tuple[list[int], int]:
    """Generate once; before each decode step `guess(prompt and output, tokens left)` gives the drafts."""
    config = EngineConfig(
        model=str(model.path), dtype="float32", num_kv_blocks=64, warm_up=False, speculation=Speculation.OFF, **settings
    )
    engine = build_engine(config)
    engine.loop.drafter = GivenDrafter(guess)
    engine.add(new_request(0, model.prompts[0], params=params))
    tokens: list[int] = []
    while engine.has_work:
        for delta in engine.step():
            tokens += delta.token_ids
        engine.scheduler.check_integrity()
    return tokens, engine.stats().scheduler.num_steps


def no_guess(token_ids: list[int], left: int) -> list[int]:
    return []
