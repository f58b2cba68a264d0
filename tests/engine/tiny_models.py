"""Tiny random models on disk, of every variant that our decoder supports, and transformers' output for them."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

TINY: dict[str, Any] = {
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


GEMMA = {
    "model_type": "gemma3_text",
    "head_dim": 16,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


LONGROPE = {
    "model_type": "phi3",
    "pad_token_id": 0,
    "original_max_position_embeddings": 24,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.5, 2.0, 3.0, 4.0],
        "original_max_position_embeddings": 24,
    },
}
"""Other angles from the first token on for a sequence of more than 24 tokens."""


THROUGH_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "gemma3_text": GEMMA,
    "gpt2": {"model_type": "gpt2"},
    "phi3-longrope": LONGROPE,
}


SMALLEST_LEAD = 1e-3
"""How far the best logit must be ahead of the second, or rounding might decide a token; fp32 errs by 1e-5 here."""


@dataclass(frozen=True)
class TinyModel:
    """A random model on disk, mixed prompts, and what transformers generates for them."""

    path: Path
    prompts: list[list[int]]
    max_tokens: list[int]
    expected: list[list[int]]

    def few(self, count: int) -> TinyModel:
        """Return the same model with its first prompts only."""
        return TinyModel(self.path, self.prompts[:count], self.max_tokens[:count], self.expected[:count])


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


def overwrite_weights(path: Path) -> None:
    """Write zeros where the weights of a model's only file lie, in place, as a careless copy of another model does."""
    with (path / "model.safetensors").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        begin = 8 + int.from_bytes(file.read(8), "little")
        file.seek(begin)
        file.write(bytes(size - begin))


def _make(path: Path, settings: dict[str, Any]) -> TinyModel:
    model = save_tiny(path, settings)
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 256) for _ in range(rng.randint(1, 60))] for _ in range(49)]
    prompts.append(prompts[0] + prompts[1])
    max_tokens = [rng.randint(1, 24) for _ in prompts]
    expected = [tokens for tokens, _ in greedy(model, prompts, max_tokens)]
    return TinyModel(path, prompts, max_tokens, expected)


def answered(path: Path, settings: dict[str, Any]) -> TinyModel:
    """Save a model; ask what repeats itself and what shares its beginning, up to where rounding could decide."""
    model = save_tiny(path, settings)
    model.generation_config.eos_token_id = None
    rng = random.Random(11)
    stem = [rng.randrange(3, 256) for _ in range(18)]
    prompts = [stem[:cut] + [rng.randrange(3, 256) for _ in range(rng.randint(1, 9))] for cut in (0, 5, 9, 18, 18)]
    prompts += [[9, 7, 8] * 9, stem + stem, stem[:1], stem]  # what repeats itself is what drafts are made from
    expected = certain_answers(model, prompts, [rng.randint(14, 22) for _ in prompts])
    return TinyModel(path, prompts, [len(tokens) for tokens in expected], expected)


def certain_answers(model: Any, prompts: list[list[int]], limits: list[int]) -> list[list[int]]:
    """Return transformers' tokens of each prompt before the first that rounding could have decided."""
    return [
        tokens[: [*(lead < SMALLEST_LEAD for lead in leads), True].index(True)]
        for tokens, leads in greedy(model, prompts, limits)
    ]


def greedy(model: Any, prompts: list[list[int]], limits: list[int]) -> list[tuple[list[int], list[float]]]:
    """Return transformers' greedy tokens of each prompt, and the lead in logits of each token over the second best.

    All prompts at once, and every step from the first token on: nothing is kept between steps, and no token sees what
    fills its row up behind it. With models this small that takes a fifth of `generate`, which goes token by token.
    Only longrope takes its angles from the longest row, and so goes prompt by prompt.
    """
    if len(prompts) > 1 and (getattr(model.config, "rope_parameters", None) or {}).get("rope_type") == "longrope":
        return [greedy(model, [prompt], [limit])[0] for prompt, limit in zip(prompts, limits, strict=True)]
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    found: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    while unfinished := [
        (prompt + tokens, tokens, leads)
        for prompt, limit, (tokens, leads) in zip(prompts, limits, found, strict=True)
        if len(tokens) < limit and not ends & set(tokens)
    ]:
        width = max(len(ids) for ids, _, _ in unfinished)
        with torch.inference_mode():
            rows = torch.tensor([ids + [0] * (width - len(ids)) for ids, _, _ in unfinished])
            logits = model(rows, use_cache=False).logits.float()
        for row, (ids, tokens, leads) in zip(logits, unfinished, strict=True):
            best, second = row[len(ids) - 1].topk(2).values.tolist()
            tokens.append(int(row[len(ids) - 1].argmax()))
            leads.append(best - second)
    return found
