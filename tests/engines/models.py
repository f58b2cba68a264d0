"""Random models from a seed with the demo model's tokenizer, and lines whose best logits lead clearly."""

from __future__ import annotations

import functools
import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine import LLM, SamplingParams
from engine.detokenizer import REPLACEMENT
from tests.engine.gguf.builders import As
from tests.engine.gguf.conversion import written_as_gguf

DEMO_MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo_model"
SEED = 7
SMALLEST_LEAD = 1e-3
"""How far the best logit must be ahead of the second at every step: fp32 errs by 1e-5 here."""
_SHAPE: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Wide weights keep the logits apart.
    "initializer_range": 0.3,
}
"""Heads of 32: vLLM's attention on a CPU takes no smaller ones."""
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
}


def make_model(folder: Path, kind: str) -> Path:
    """Write a random model with the demo model's tokenizer and chat template; the same files each time."""
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(_SHAPE | KINDS[kind])))
    model.eval().float().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO_MODEL / name, folder / name)
    return folder


def write_gguf(folder: Path) -> Path:
    """Write the model of a folder as one file in fp32, with its tokenizer; return the file."""
    written = written_as_gguf(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"] for token in tokenizer["added_tokens"]}
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda entry: entry[1])
    described = {
        "model": "gpt2",
        "pre": "gpt-2",  # another one: prompts go as token ids
        "tokens": [token for token, _ in vocabulary],
        "token_type": [As("i32", 3 if number in special else 1) for _, number in vocabulary],
        "merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "padding_token_id": 0,
    }
    written.metadata |= {f"tokenizer.ggml.{name}": value for name, value in described.items()}
    return written.to(folder / "model.gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearLine:
    """A greedy request whose answer no rounding decides, and our engine's answer."""

    body: dict[str, Any]
    text: str
    finish_reason: str
    num_tokens: int


@functools.cache
def clear_lines(path: Path, num: int) -> list[ClearLine]:
    """Return `num` mixed requests, by turns conversations, texts and token ids, that lead clearly in our engine."""
    rng, llm = random.Random(SEED), LLM(path, dtype="float32", max_model_len=512)
    found: list[ClearLine] = []
    token_ids = _whole_tokens(llm)
    while len(found) < num:
        bodies = [_body(rng, number % 3, token_ids) for number in range(num)]
        prompts = [_prompt(llm, body) for body in bodies]
        params = [SamplingParams(temperature=0.0, max_tokens=body["max_tokens"], logprobs=2) for body in bodies]
        for body, result in zip(bodies, llm.generate(prompts, params), strict=True):
            (output,) = result.outputs
            leads = [_lead(step) for step in output.logprobs or ()]
            # vLLM leaves out a character that is not whole at the end, and shows one of the prompt's end.
            if min(leads) >= SMALLEST_LEAD and REPLACEMENT not in output.text:
                reason = str(output.finish_reason)
                found.append(
                    ClearLine(body=body, text=output.text, finish_reason=reason, num_tokens=len(output.token_ids))
                )
    return found[:num]


def _lead(step: dict[int, Any]) -> float:
    first, second = sorted((one.logprob for one in step.values()), reverse=True)[:2]
    return float(first - second)


def _whole_tokens(llm: LLM) -> list[int]:
    """Return the tokens that are no part of a character."""
    return [number for number in range(6, _SHAPE["vocab_size"]) if REPLACEMENT not in llm.tokenizer.decode([number])]


def _body(rng: random.Random, form: int, token_ids: Sequence[int]) -> dict[str, Any]:
    words = " ".join(rng.choices(("red", "green", "seven", "Why?", "data", "mill", "of", "3,"), k=rng.randint(1, 60)))
    common: dict[str, Any] = {"model": "demo", "temperature": 0.0, "max_tokens": rng.randint(1, 24)}
    if form == 0:
        return common | {"messages": [{"role": "user", "content": words}]}
    return common | {"prompt": words if form == 1 else rng.choices(token_ids, k=rng.randint(2, 60))}


def _prompt(llm: LLM, body: dict[str, Any]) -> Any:
    if "messages" in body:
        return {"prompt_token_ids": _template(llm, body["messages"])}
    prompt = body["prompt"]
    return prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}


def _template(llm: LLM, messages: list[dict[str, Any]]) -> list[int]:
    token_ids: list[int] = llm.tokenizer.encode(
        llm.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True),
        add_special_tokens=False,
    )
    return token_ids
