"""Every two settings that can change how a token is computed, together somewhere: all give transformers' tokens.

The full product would run for an hour; bugs come from one setting or from two that meet, so each pair is covered. In
every run the pool is full of NaN at the start: what is read before it is written shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.loop.core import Engine
from engine.params import SamplingParams
from engine.scheduling.swap import SwapRule
from engine.speculation.lookup_drafter import LookupDrafter
from tests.engine.builders import FreeRows, new_request, runner_of
from tests.engine.tiny_models import THROUGH_TRANSFORMERS, VARIANTS, TinyModel, answered

pytestmark = pytest.mark.comparison

MODELS = {**VARIANTS, **THROUGH_TRANSFORMERS}

FACTORS: dict[str, tuple[Any, ...]] = {
    "model": tuple(MODELS),
    "budget": (1, 7, 16, 512),
    "pool": ("ample", "tiny", "swapped"),
    "has_prefix_cache": (True, False),
    "speculation": ("off", "ngram"),
    "overlap": (False, True),
}
"""A budget of one token is one sequence at a time, which no pool that holds it preempts.

Only steps without drafts overlap.
"""

BLOCK_SIZE = 4
AMPLE, TINY_POOL = 200, 15
NUM_PROMPTS = 9

Case = tuple[Any, ...]
Group = frozenset[tuple[int, Any]]


def groups(case: Case, size: int) -> set[Group]:
    """Return every `size` settings of a case; what a pool does to it counts as one, and whether its steps overlap."""
    return {frozenset(group) for group in combinations(enumerate((*case, pressure(case), overlaps(case))), size)}


def pressure(case: Case) -> str | None:
    """Return how sequences that lose their blocks get them back; None where none loses them."""
    _, budget, pool, *_ = case
    return pool if pool != "ample" and budget > 1 else None


def overlaps(case: Case) -> bool:
    """Tell whether a step is planned before the last one's tokens are known."""
    *_, speculation, wants_overlap = case
    return bool(wants_overlap) and speculation == "off"


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


def engine_for(case: Case, path: Path) -> Engine:
    _, budget, pool, has_prefix_cache, speculation, _ = case
    engine = build_engine(
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
            enable_prefix_caching=has_prefix_cache,
            speculation=speculation,
            overlap=overlaps(case),
            warm_up=False,
        )
    )
    if engine.loop.drafter is not None:  # the real clock might find that drafts do not pay on a machine
        engine.loop.drafter = LookupDrafter(max_drafts=8, min_match=1, max_match=8, clock=FreeRows())
    runner_of(engine).fill_cache(float("nan"))
    return engine


def run(engine: Engine, model: TinyModel) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in model.prompts]
    for index, (prompt, limit) in enumerate(zip(model.prompts, model.max_tokens, strict=True)):
        engine.add(
            new_request(index, prompt, params=SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True))
        )
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
    model, budget, pool, has_prefix_cache, speculation, wants_overlap = case
    last = "overlap" if wants_overlap else "wait"
    return f"{model}-{budget}-{pool}-{'cache' if has_prefix_cache else 'plain'}-{speculation}-{last}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_any_two_settings_together_give_the_tokens_of_transformers(
    case: Case, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SwapRule, "prefers_swap", lambda self, **sizes: True)
    _, budget, _, has_prefix_cache, speculation, _ = case
    model = models[case[0]]
    engine = engine_for(case, model.path)
    assert run(engine, model) == model.expected
    stats = engine.stats()
    assert (stats.scheduler.num_preemptions > 0) == (pressure(case) is not None)
    assert (stats.scheduler.num_swaps > 0) == (pressure(case) == "swapped")
    assert (stats.cache.num_cached_tokens > 0) == has_prefix_cache
    assert (stats.speculation.num_drafted > 0) == (speculation == "ngram" and budget > 1)
    assert engine.scheduler.pool.num_used == 0
