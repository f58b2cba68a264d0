"""Sampling parameters of lines: one table, each parameter with its check and its documentation.

The fields have the names of `engine.SamplingParams`, so the worker passes them on unchanged; `protocol.sampling` has
the ranges of both. The table in docs/api.md is generated from these declarations, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

from jobs.lines.body_checks import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_SCORES,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    MAX_WORD_CHARACTERS,
    Check,
    Within,
    allowed_token_ids,
    bad_words,
    flag,
    in_range,
    logit_bias,
    stop_token_ids,
    stops,
    top_p,
)
from protocol.sampling import MAX_BIAS, MAX_LOGPROBS, MAX_TEMPERATURE, Number

Default = TypeVar("Default")


def _parameter(default: Default, check: Check | None, *, allowed: str = "", note: str = "") -> Default:
    """Declare a parameter; `check` is None where each endpoint has its own, `allowed` is for checks without a range."""
    shown = allowed or getattr(check, "shown", "")
    return field(default=default, metadata={"check": check, "allowed": shown, "note": note})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen, and how many. `max_tokens` None means until the context ends."""

    n: int = _parameter(1, in_range("n"), note="child i draws with seed + i")
    temperature: float = _parameter(
        1.0,
        Within(Number(0.0, MAX_TEMPERATURE)),
        note="0 is greedy; where it or `top_p` is not given it is 1, unless the worker takes [the model's suggestion]"
        "(thinking.md#sampling-that-a-model-suggests)",
    )
    top_p: float = _parameter(1.0, top_p, allowed="above 0 … 1")
    top_k: int = _parameter(0, in_range("top_k"), note="vLLM's; 0 and −1 switch it off")
    min_p: float = _parameter(0.0, in_range("min_p"), note="vLLM's")
    presence_penalty: float = _parameter(0.0, in_range("presence_penalty"), note="over the output's tokens")
    frequency_penalty: float = _parameter(0.0, in_range("frequency_penalty"), note="over the output's tokens")
    repetition_penalty: float = _parameter(1.0, in_range("repetition_penalty"), note="vLLM's; over prompt and output")
    logit_bias: tuple[tuple[int, float], ...] = _parameter(
        (), logit_bias, allowed=f"token id → −{MAX_BIAS:g} … {MAX_BIAS:g}", note=f"at most {MAX_BIASES:,} ids"
    )
    allowed_token_ids: tuple[int, ...] | None = _parameter(
        None, allowed_token_ids, allowed=f"at most {MAX_ALLOWED_TOKEN_IDS:,} token ids", note="vLLM's"
    )
    bad_words: tuple[str, ...] = _parameter(
        (),
        bad_words,
        allowed=f"at most {MAX_BAD_WORDS:,} strings of {MAX_WORD_CHARACTERS} characters",
        note="vLLM's; a bad word is refused as it is and after a space",
    )
    seed: int | None = _parameter(
        None,
        in_range("seed"),
        allowed="64 bits",
        note="the same tokens in any batch, after a preemption and after a crash, [near-ties and costly grammars apart]"
        "(architecture.md#same-request-same-tokens). A given seed is that of all prompts of a line; without one each "
        "prompt's own is derived from batch, line and its place",
    )
    stop: tuple[str, ...] = _parameter(
        (), stops, allowed=f"at most {MAX_STOPS} strings of {MAX_WORD_CHARACTERS} characters"
    )
    stop_token_ids: tuple[int, ...] = _parameter(
        (), stop_token_ids, allowed=f"at most {MAX_STOP_TOKEN_IDS:,} token ids", note="vLLM's"
    )
    include_stop_str_in_output: bool = _parameter(default=False, check=flag, allowed="true or false", note="vLLM's")
    ignore_eos: bool = _parameter(default=False, check=flag, allowed="true or false", note="vLLM's")
    max_tokens: int | None = _parameter(None, None, allowed="1 …", note="0 with `echo`, too")
    min_tokens: int = _parameter(
        0, in_range("min_tokens"), note="before it neither a stop string nor a stop token ends the output"
    )
    logprobs: int | None = _parameter(
        None,
        None,
        allowed=f"0 … {MAX_LOGPROBS}",
        note="of the model's distribution, before every other parameter; a chat's is true or false with "
        "`top_logprobs`; a completion shows the token itself, too, where it is not among the likeliest. At most "
        f"{MAX_SCORES:,} in a line's answer: its outputs end (`length`) at {MAX_SCORES:,} ÷ (`logprobs` + 1) ÷ "
        "(prompts × `n`) tokens, whatever `max_tokens` and `min_tokens` say",
    )
    prompt_logprobs: int | None = _parameter(
        None,
        in_range("prompt_logprobs"),
        note="vLLM's, in its form: in a chat's answer, in a completion's choices. Such a prompt takes nothing from the "
        f"prefix cache. At most {MAX_SCORES:,} in a line's answer: prompt tokens × (`prompt_logprobs` + 1), in "
        "completions × `n`, and of an echo's prompt likewise",
    )
    skip_special_tokens: bool = _parameter(default=True, check=flag, allowed="true or false", note="vLLM's")


CHECKS: Mapping[str, Check] = {one.name: one.metadata["check"] for one in fields(Sampling) if one.metadata["check"]}
"""Checks of the parameters that both endpoints pass on under the same name."""


def documented_rows() -> list[str]:
    """Return the rows of the table in docs/api.md, in order."""
    return [f"| `{one.name}` | {one.metadata['allowed']} | {one.metadata['note']} |" for one in fields(Sampling)]
