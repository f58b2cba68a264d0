"""Fakes and builders that the engine's tests share: sequences without a model, tiny models on disk."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from engine.config import Admission, Batching, PolicyName
from engine.params import SamplingParams
from engine.scheduling.blocks import BlockPool, sha256_digest
from engine.scheduling.plan import SchedulerLimits, StepPlan
from engine.scheduling.policies import make_policy
from engine.scheduling.request import Request, Sequence
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.swap import SwapSpace

# A GPU machine may have the engine's own requirements and no more.
_NEEDS = {
    "hypothesis": [
        "scheduling/test_scheduler_machine.py",
        "speculation/test_prompt_lookup.py",
        "test_text_properties.py",
    ],
    "jsonschema_rs": ["test_emulated_cuda.py", "grammars/test_structured_output.py"],
    "llguidance": ["test_emulated_cuda.py", "grammars/test_grammar.py", "grammars/test_structured_output.py"],
    "msgspec": ["device/test_energy.py", "process/test_outbox.py", "process/test_parent.py"],
}
collect_ignore = [name for package, names in _NEEDS.items() if find_spec(package) is None for name in names]


@dataclass
class SimulatedEngine:
    """The real scheduler and blocks with a pure function of the tokens in place of the model."""

    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 32
    max_model_len: int = 512
    enable_prefix_caching: bool = True
    batching: Batching = Batching.CONTINUOUS
    admission: Admission = Admission.PEAK
    policy: PolicyName = PolicyName.PRIORITY
    max_passed_over: int = 64
    swap: SwapSpace | None = None
    overlap: bool = False
    digest: Callable[[bytes], bytes] = sha256_digest
    watch: Callable[[StepPlan], None] | None = None
    now: float = 0.0
    finished: dict[int, list[Sequence]] = field(default_factory=dict)
    _arrivals: Iterator[int] = field(default_factory=itertools.count)
    _in_flight: StepPlan | None = None

    def __post_init__(self) -> None:
        pool = BlockPool(self.num_blocks, self.block_size, digest=self.digest)
        limits = SchedulerLimits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
        )
        self.scheduler = Scheduler(
            pool,
            limits,
            enable_prefix_caching=self.enable_prefix_caching,
            batching=self.batching,
            admission=self.admission,
            policy=make_policy(self.policy),
            max_passed_over=self.max_passed_over,
            swap=self.swap,
            clock=lambda: self.now,
        )

    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        n: int = 1,
        priority: int = 0,
        deadline: float | None = None,
        salt: str = "",
        stop_token_ids: tuple[int, ...] = (),
    ) -> int:
        arrival = next(self._arrivals)
        request = Request(
            request_id=arrival,
            prompt_token_ids=prompt,
            params=SamplingParams(n=n, ignore_eos=True, stop_token_ids=stop_token_ids, max_tokens=max_tokens),
            max_tokens=max_tokens,
            seed=0,
            eos_token_ids=frozenset(),
            arrival=arrival,
            priority=priority,
            deadline=deadline,
            salt=salt,
        )
        pool = self.scheduler.pool
        self.scheduler.add([Sequence(request, index, pool.chain(salt)) for index in range(n)])
        return arrival

    def step(self) -> list[tuple[Sequence, int]]:
        """Run one step, which takes a second; return who computed how many tokens, or whose last token came."""
        plan = self.scheduler.schedule()
        if self.watch is not None:
            self.watch(plan)
        self.now += 1.0
        assert sum(plan.counts) + len(plan.padding) <= self.max_num_batched_tokens
        if self.overlap:
            return self._overlap(plan)
        ended = self._append(plan)
        self.scheduler.advance(plan)
        self._finish(ended)
        return list(zip(plan.sequences, plan.counts, strict=True))

    def _overlap(self, plan: StepPlan) -> list[tuple[Sequence, int]]:
        ended = [] if self._in_flight is None else self._append(self._in_flight)
        self._finish(ended)
        has_started = bool(plan.sequences)
        plan.settle(self.scheduler.__contains__)
        if has_started:
            self.scheduler.advance(plan)
            self.scheduler.expect_tokens(plan)
        self._in_flight = plan
        return list(zip(plan.sequences, plan.counts, strict=True)) or [(sequence, 0) for sequence in ended]

    def _append(self, plan: StepPlan) -> list[Sequence]:
        """Append what the plan samples; return who ends with it."""
        alive = [sequence for sequence, _ in plan.sampling() if sequence in self.scheduler]
        return [sequence for sequence in alive if sequence.append(next_token(sequence.token_ids)) is not None]

    def _finish(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self.scheduler.finish(sequence)
            self.finished.setdefault(sequence.request.request_id, []).append(sequence)

    def run(self, max_steps: int = 10_000) -> int:
        """Run until nothing is left; return the number of steps."""
        for step in range(max_steps):
            if not self.scheduler.has_work:
                return step
            assert self.step(), "an empty step while there is work"
            self.scheduler.check_integrity()
        raise AssertionError(f"not done after {max_steps} steps")


def next_token(token_ids: list[int]) -> int:
    """Stand in for the model: a token that depends on every token before it."""
    return sum((place + 1) * token for place, token in enumerate(token_ids)) % 97


def expected_output(prompt: list[int], max_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


TINY = {
    "vocab_size": 256,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Wide weights keep the logits apart, so that fp32 rounding never decides a token.
    "initializer_range": 0.3,
}

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama-gqa": {"model_type": "llama"},
    "llama-tied-biased": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "num_key_value_heads": 6,
    },
    "llama-rope-llama3": {"model_type": "llama", "rope_parameters": LLAMA3},
    "llama-rope-linear": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    },
    "llama-rope-dynamic": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    },
    "mistral-window": {"model_type": "mistral", "sliding_window": 11, "head_dim": 16},
    "mistral-full": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-window-yarn": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
        "rope_parameters": YARN,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "qwen3-layer-types": {
        "model_type": "qwen3",
        "head_dim": 32,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


@dataclass(frozen=True)
class TinyModel:
    """A random model on disk, mixed prompts, and what transformers generates for them."""

    path: Path
    prompts: list[list[int]]
    max_tokens: list[int]
    expected: list[list[int]]


class TinyModels:
    """Make each tiny model once per session."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, TinyModel] = {}

    def __getitem__(self, name: str) -> TinyModel:
        if name not in self._made:
            self._made[name] = _make(self._root / name, VARIANTS[name])
        return self._made[name]


def save_tiny(path: Path, settings: dict[str, Any], **kwargs: Any) -> Any:
    """Save a random model in transformers' own format and return it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    config = AutoConfig.for_model(**{**TINY, **settings})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
        elif "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(path, **kwargs)
    return model


def _make(path: Path, settings: dict[str, Any]) -> TinyModel:
    import torch

    model = save_tiny(path, settings)
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 256) for _ in range(rng.randint(1, 60))] for _ in range(49)]
    prompts.append(prompts[0] + prompts[1])
    max_tokens = [rng.randint(1, 24) for _ in prompts]
    expected = []
    with torch.inference_mode():
        for prompt, limit in zip(prompts, max_tokens, strict=True):
            ids = torch.tensor([prompt])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False)
            expected.append(out[0, len(prompt) :].tolist())
    return TinyModel(path, prompts, max_tokens, expected)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("models"))
