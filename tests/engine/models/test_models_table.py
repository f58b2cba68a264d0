"""Proves the rows of docs/models.md: tiny random models of every family against transformers' own generation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import UnsupportedModelError
from engine.loop import runner
from engine.models.step_model import StepModel
from tests.engine.models.builders import build_family, check_run, engine_of_run
from tests.engine.models.families import (
    OWN,
    REFUSED,
    RUNS,
    SMALLEST_LEAD,
    THROUGH_TRANSFORMERS,
    TINY,
    Family,
    Refusal,
    Run,
)
from tests.engine.tiny_models import TinyModel, greedy

pytestmark = [
    pytest.mark.comparison,
    pytest.mark.long,
    # transformers 5.17 scripts a function of gpt_bigcode when it is imported, which newer torch warns about.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

_SEEDS = range(20)

_PROVEN = [
    *(pytest.param(family, "tokenmill", id=f"{family.model_type}-own") for family in OWN),
    *(pytest.param(family, "transformers", id=family.model_type) for family in (*OWN, *THROUGH_TRANSFORMERS)),
]


@pytest.mark.parametrize(("family", "impl"), _PROVEN)
def test_every_run_of_a_family_gives_the_tokens_of_transformers(
    *, family: Family, impl: str, proofs: Proofs, loaded_once: None
) -> None:
    model = proofs[family]
    for run in RUNS:
        check_run(model, run, impl)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("family", "impl"), _PROVEN)
def test_a_family_gives_the_tokens_of_transformers_on_a_gpu(*, family: Family, impl: str, proofs: Proofs) -> None:
    check_run(proofs[family], RUNS[1], impl, device="cuda")


def test_every_combination_gives_the_tokens_of_transformers(proofs: Proofs, loaded_once: None) -> None:
    model = proofs[next(family for family in THROUGH_TRANSFORMERS if family.model_type == "gemma3_text")]
    for budget, is_pool_tiny, has_prefix_cache in product((1, 7, 16, 512), (False, True), (False, True)):
        run = Run(
            name="combined",
            max_num_batched_tokens=budget,
            max_num_seqs=min(budget, 8),
            is_pool_tiny=is_pool_tiny,
            has_prefix_cache=has_prefix_cache,
            num_prompts=8 if budget > 1 else 3,
        )
        check_run(model, run, "transformers")


@pytest.mark.parametrize("refusal", REFUSED, ids=lambda refusal: refusal.model_type)
def test_a_model_that_needs_what_the_engine_lacks_is_refused_by_name(refusal: Refusal, tmp_path: Path) -> None:
    build_family(refusal, seed=0).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=refusal.reason):
        engine_of_run(tmp_path, RUNS[0], "auto")


class Proofs:
    """Make each family's random model once, with what transformers generates for it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, TinyModel] = {}

    def __getitem__(self, family: Family) -> TinyModel:
        if family.model_type not in self._made:
            self._made[family.model_type] = self._make(family)
        return self._made[family.model_type]

    def _make(self, family: Family) -> TinyModel:
        rng = random.Random(5)
        prompts = [[rng.randrange(3, TINY["vocab_size"]) for _ in range(length)] for length in (14, 20, 9, 26, 5, 2, 1)]
        prompts.append(prompts[3][:17] + prompts[4])
        max_tokens = [16, 12, 16, 16, 1, 9, 16, 12]
        for seed in _SEEDS:
            model = build_family(family, seed=seed)
            outputs = greedy(model, prompts, max_tokens)
            if all(min(leads) >= SMALLEST_LEAD for _, leads in outputs):
                path = self._root / family.model_type
                model.save_pretrained(path)
                return TinyModel(path, prompts, max_tokens, [tokens for tokens, _ in outputs])
        raise AssertionError(f"{family.model_type}: every seed has a near-tie; change its settings")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are slower on several threads, which wait for each other on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Proofs:
    return Proofs(tmp_path_factory.mktemp("families"))


@pytest.fixture
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the weights once for all runs of a test: a model keeps nothing from step to step."""
    load, loaded = runner.load_model, list[StepModel]()

    def load_once(config: Any, **kwargs: Any) -> StepModel:
        if not loaded:
            loaded.append(load(config, **kwargs))
        return loaded[0]

    monkeypatch.setattr(runner, "load_model", load_once)
