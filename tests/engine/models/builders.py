"""Families of models made by transformers, and engines that must give the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from engine.build import build_engine
from engine.config import EngineConfig
from engine.loop.core import Engine
from tests.engine.builders import run_all
from tests.engine.models.families import TINY, Family, Refusal, Run
from tests.engine.tiny_models import TinyModel

_BLOCK_SIZE = 4
_AMPLE, _TINY_POOL = 200, 12


def check_run(model: TinyModel, run: Run, impl: str, *, device: str = "cpu") -> None:
    """Check that an engine set as `run` says gives the tokens of transformers, and holds nothing afterwards."""
    model = model.few(run.num_prompts)
    engine = engine_of_run(model.path, run, impl, device=device)
    assert run_all(engine, model) == model.expected, run
    assert engine.stats().load.num_used_blocks == 0
    if run.is_pool_tiny and run.max_num_seqs > 1:
        assert engine.stats().scheduler.num_preemptions > 0, run


def engine_of_run(path: Path, run: Run, impl: str, *, device: str = "cpu") -> Engine:
    return build_engine(
        EngineConfig(
            model=str(path),
            dtype="float32",
            device=device,
            max_num_seqs=run.max_num_seqs,
            max_num_batched_tokens=run.max_num_batched_tokens,
            num_kv_blocks=_TINY_POOL if run.is_pool_tiny else _AMPLE,
            block_size=_BLOCK_SIZE,
            enable_prefix_caching=run.has_prefix_cache,
            admission="prompt",  # type: ignore[arg-type]
            warm_up=False,
            model_impl=impl,  # type: ignore[arg-type]
        )
    )


def build_family(entry: Family | Refusal, *, seed: int) -> Any:
    """Make a random model of a family that the installed transformers knows."""
    if entry.model_type not in CONFIG_MAPPING_NAMES:
        pytest.skip(f"the installed transformers has no {entry.model_type}")
    torch.manual_seed(seed)
    config = AutoConfig.for_model(entry.model_type, **{**TINY, **entry.settings})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "sinks")):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def generate_with_lead(model: Any, prompt: list[int], limit: int) -> tuple[list[int], float]:
    """Return transformers' greedy tokens, and the smallest lead of a token over the second best."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=limit,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    leads = [float(top[0] - top[1]) for top in (logits[0].float().topk(2).values for logits in out.logits)]
    return out.sequences[0, len(prompt) :].tolist(), min(leads)
