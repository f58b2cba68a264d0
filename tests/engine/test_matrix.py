"""Every two settings that can change how a token is computed, together somewhere: all give transformers' tokens.

The full product would run for an hour; bugs come from one setting or from two that meet, so each pair is covered. In
every run the pool is full of NaN at the start: what is read before it is written shows.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core import Engine
from engine.params import SamplingParams
from engine.scheduling.swap import SwapRule
from engine.speculation.speculator import Speculator
from tests.engine.speculation.test_speculative_runs import FreeRows

from .conftest import VARIANTS, TinyModel, save_tiny

GEMMA = {
    "model_type": "gemma3_text",
    "head_dim": 16,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
THROUGH_TRANSFORMERS: dict[str, dict[str, Any]] = {"gemma3_text": GEMMA, "gpt2": {"model_type": "gpt2"}}
MODELS = {**VARIANTS, **THROUGH_TRANSFORMERS}

FACTORS: dict[str, tuple[Any, ...]] = {
    "model": tuple(MODELS),
    "budget": (1, 7, 16, 512),
    "pool": ("ample", "tiny", "swapped"),
    "batching": ("continuous", "static"),
    "has_prefix_cache": (True, False),
    "speculation": ("off", "ngram"),
    "overlap": (False, True),
}
"""A budget of one token is one sequence at a time, which no pool that holds it preempts; nor is a static batch.

Only continuous batches without drafts overlap.
"""

BLOCK_SIZE = 4
AMPLE, TINY_POOL = 200, 15
NUM_PROMPTS = 9
SMALLEST_LEAD = 1e-3
"""How far the best logit must be ahead of the second, or rounding might decide a token; fp32 errs by 1e-5 here."""

Case = tuple[Any, ...]
Group = frozenset[tuple[int, Any]]


def groups(case: Case, size: int) -> set[Group]:
    """Return every `size` settings of a case; what a pool does to it counts as one, and whether its steps overlap."""
    return {frozenset(group) for group in combinations(enumerate((*case, pressure(case), overlaps(case))), size)}


def pressure(case: Case) -> str | None:
    """Return how sequences that lose their blocks get them back; None where none loses them."""
    _, budget, pool, batching, *_ = case
    return pool if pool != "ample" and budget > 1 and batching == "continuous" else None


def overlaps(case: Case) -> bool:
    """Tell whether a step is planned before the last one's tokens are known."""
    *_, batching, _, speculation, wants_overlap = case
    return bool(wants_overlap) and batching == "continuous" and speculation == "off"


def covering_cases() -> Iterator[Case]:
    """Take the case with the most pairs that no case before it has, until none is left.

    Of equal ones the one with the most new groups of three, then the first. The two longest factors are crossed to
    begin with, which makes each choice a short one.
    """
    longest, second, *others = FACTORS.values()
    covered: set[Group] = set()

    def most_new(cases: Iterable[Case]) -> Case:
        return max(cases, key=lambda case: [len(groups(case, size) - covered) for size in (2, 3)])

    for head in product(longest, second):
        best = most_new((*head, *rest) for rest in product(*others))
        covered |= groups(best, 2) | groups(best, 3)
        yield best
    while not groups(best := most_new(product(*FACTORS.values())), 2) <= covered:
        covered |= groups(best, 2)
        yield best


CASES = list(covering_cases())


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Make each model once, with prompts and transformers' own answers."""

    root: Path
    made: dict[str, TinyModel]

    def __getitem__(self, name: str) -> TinyModel:
        if name not in self.made:
            self.made[name] = answered(self.root / name, MODELS[name])
        return self.made[name]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(root=tmp_path_factory.mktemp("matrix"), made={})


def answered(path: Path, settings: dict[str, Any]) -> TinyModel:
    model = save_tiny(path, settings)
    model.generation_config.eos_token_id = None
    rng = random.Random(11)
    stem = [rng.randrange(3, 256) for _ in range(18)]
    prompts = [stem[:cut] + [rng.randrange(3, 256) for _ in range(rng.randint(1, 9))] for cut in (0, 5, 9, 18, 18)]
    prompts += [[9, 7, 8] * 9, stem + stem, stem[:1], stem]  # what repeats itself is what drafts are made from
    with torch.inference_mode():
        expected = [certain_answer(model, prompt, rng.randint(14, 22)) for prompt in prompts]
    return TinyModel(path, prompts, [len(tokens) for tokens in expected], expected)


def certain_answer(model: Any, prompt: list[int], limit: int) -> list[int]:
    """Return transformers' tokens before the first that rounding could have decided."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=limit,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.cat(out.logits).topk(2).values
    is_close = (best[:, 0] - best[:, 1] < SMALLEST_LEAD).tolist()
    tokens: list[int] = out.sequences[0, len(prompt) :].tolist()
    return tokens[: [*is_close, True].index(True)]


def engine_for(case: Case, path: Path) -> Engine:
    _, budget, pool, batching, has_prefix_cache, speculation, _ = case
    engine = Engine(
        EngineConfig(
            model=str(path),
            dtype="float32",
            device="cpu",
            block_size=BLOCK_SIZE,
            num_kv_blocks=AMPLE if pool == "ample" else TINY_POOL,
            swap_space_gib=0.001 if pool == "swapped" else 0.0,
            max_num_batched_tokens=budget,
            max_num_seqs=min(budget, NUM_PROMPTS - 1),
            admission="prompt",  # type: ignore[arg-type]
            batching=batching,
            enable_prefix_caching=has_prefix_cache,
            speculation=speculation,
            overlap=overlaps(case),
            warm_up=False,
        )
    )
    if engine.speculator is not None:  # the real clock might find that drafts do not pay on a machine
        engine.speculator = Speculator(max_drafts=8, min_match=1, max_match=8, clock=FreeRows())
    engine._runner.fill_cache(float("nan"))
    return engine


def run(engine: Engine, model: TinyModel) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in model.prompts]
    for index, (prompt, limit) in enumerate(zip(model.prompts, model.max_tokens, strict=True)):
        engine.add(index, prompt, params=SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True))
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None
            outputs[delta.request_id] += delta.token_ids
        engine.scheduler.check_integrity()
    return outputs


def test_every_pair_of_settings_is_covered() -> None:
    every = {pair for case in product(*FACTORS.values()) for pair in groups(case, 2)}
    assert {pair for case in CASES for pair in groups(case, 2)} == every


def name_of(case: Case) -> str:
    model, budget, pool, batching, has_prefix_cache, speculation, wants_overlap = case
    last = "overlap" if wants_overlap else "wait"
    return f"{model}-{budget}-{pool}-{batching}-{'cache' if has_prefix_cache else 'plain'}-{speculation}-{last}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_any_two_settings_together_give_the_tokens_of_transformers(
    case: Case, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SwapRule, "prefers_swap", lambda self, **sizes: True)
    _, budget, _, batching, has_prefix_cache, speculation, _ = case
    model = models[case[0]]
    engine = engine_for(case, model.path)
    assert run(engine, model) == model.expected
    stats = engine.stats()
    assert (stats.num_preemptions_total > 0) == (pressure(case) is not None)
    assert (stats.num_swaps_total > 0) == (pressure(case) == "swapped")
    assert (stats.num_cached_tokens_total > 0) == has_prefix_cache
    assert (stats.num_drafted_tokens_total > 0) == (speculation == "ngram" and budget > 1 and batching == "continuous")
    assert engine.scheduler.pool.num_used == 0
