"""What a request asks of the sampler: `SamplingParams`, under the names of vLLM's class.

Knows nothing of models, text or batches; a parameter that is not here is not supported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.errors import InvalidParamsError
from engine.structured import StructuredOutput

MAX_LOGPROBS = 20
"""Most alternatives per token, as in OpenAI's API."""
MAX_N = 128
MAX_SEED = 2**63 - 1
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
MAX_REPETITION = 1e3
MIN_REPETITION = 1e-3
"""Below it fp32 logits, divided by it, would overflow for some models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Say how tokens are chosen and when a request ends. Raises InvalidParamsError on a value out of range.

    `stop` may be given as one string and `stop_token_ids` as any sequence; both are kept as tuples.
    `max_tokens=None` means up to the model's context. `top_k` 0 or −1, `top_p` 1 and `min_p` 0 switch a filter off.
    `temperature=0` is greedy. `seed=None` lets the engine derive one per request; child i of n uses seed + i.
    `logprobs=k` reports the chosen token and the k most likely ones of the raw distribution,
    `prompt_logprobs=k` the same for each token of the prompt but its first; then max_tokens may be 0.
    `presence_penalty` and `frequency_penalty` look at the output only, `repetition_penalty` at the prompt too.
    `logit_bias` maps token ids to what is added to their logits.
    `bad_words` are strings; the engine takes them as `bad_words_token_ids`, which who holds the tokenizer writes
    (`engine.text.with_bad_words_as_tokens`). `allowed_token_ids=None` allows every token.
    `structured` constrains the text; with it, `min_tokens` holds off the end only where the text may go on.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    structured: StructuredOutput | None = None

    def __post_init__(self) -> None:
        _set_tuples(self)
        _check_int("n", self.n, low=1, high=MAX_N)
        _check_float("temperature", self.temperature, low=0.0, high=1e6)
        _check_float("top_p", self.top_p, low=0.0, high=1.0)
        if self.top_p == 0.0:
            raise InvalidParamsError("top_p is 0; it must be above 0 and at most 1. Use temperature 0 for greedy.")
        _check_int("top_k", self.top_k, low=-1, high=2**31 - 1)
        _check_float("min_p", self.min_p, low=0.0, high=1.0)
        if self.seed is not None:
            _check_int("seed", self.seed, low=-MAX_SEED - 1, high=MAX_SEED)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, low=0, high=2**31 - 1)
        _check_int("min_tokens", self.min_tokens, low=0, high=2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParamsError(
                f"min_tokens is {self.min_tokens} and max_tokens is {self.max_tokens}; min_tokens must not be larger."
            )
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), low=0, high=MAX_LOGPROBS)
        self._check_stops()
        self._check_shifts()
        self._check_choice_of_tokens()
        if self.structured is not None and self.ignore_eos:
            raise InvalidParamsError(
                "ignore_eos is given with a structured output, which ends when its text is complete. Drop one."
            )

    def _check_stops(self) -> None:
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidParamsError(f"stop holds {text!r}; every stop string must be a non-empty string.")
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, low=0, high=2**31 - 1)
        if self.stop and not self.detokenize:
            raise InvalidParamsError("stop is given with detokenize=False; stop strings need the text. Drop one.")

    def _check_shifts(self) -> None:
        _check_float("presence_penalty", self.presence_penalty, low=-MAX_PENALTY, high=MAX_PENALTY)
        _check_float("frequency_penalty", self.frequency_penalty, low=-MAX_PENALTY, high=MAX_PENALTY)
        _check_float("repetition_penalty", self.repetition_penalty, low=MIN_REPETITION, high=MAX_REPETITION)
        if not isinstance(self.logit_bias, Mapping | None):
            raise InvalidParamsError(f"logit_bias is {self.logit_bias!r}; it must map token ids to numbers.")
        for token_id, bias in (self.logit_bias or {}).items():
            _check_int("logit_bias's token id", token_id, low=0, high=2**31 - 1)
            _check_float("logit_bias", bias, low=-MAX_BIAS, high=MAX_BIAS)

    def _check_choice_of_tokens(self) -> None:
        for word in self.bad_words:
            if not isinstance(word, str) or not word.strip():
                raise InvalidParamsError(f"bad_words holds {word!r}; every bad word must be a string with a character.")
        for token_ids in self.bad_words_token_ids:
            if not token_ids:
                raise InvalidParamsError("bad_words_token_ids holds an empty sequence; give at least one token id.")
            for token_id in token_ids:
                _check_int("bad_words_token_ids", token_id, low=0, high=2**31 - 1)
        if self.allowed_token_ids is None:
            return
        for token_id in self.allowed_token_ids:
            _check_int("allowed_token_ids", token_id, low=0, high=2**31 - 1)
        if not set(self.allowed_token_ids) - {ids[-1] for ids in self.bad_words_token_ids}:
            # With such a token there is always one that may be taken, whatever came before.
            raise InvalidParamsError(
                "allowed_token_ids holds no token but those that end bad words; allow another one, or leave it out."
            )

    @property
    def has_penalty(self) -> bool:
        """Tell whether the tokens so far change the logits of the next one."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def is_greedy(self) -> bool:
        """Tell whether the most likely token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1


def _set_tuples(params: SamplingParams) -> None:
    # None is what clients send for "not given"; it and () mean the same here.
    stop = (params.stop,) if isinstance(params.stop, str) else params.stop
    bad_words = (params.bad_words,) if isinstance(params.bad_words, str) else params.bad_words
    bad_ids = tuple(tuple(ids) for ids in params.bad_words_token_ids or ())
    for name, value in (("stop", stop), ("stop_token_ids", params.stop_token_ids), ("bad_words", bad_words)):
        object.__setattr__(params, name, tuple(value) if value is not None else ())
    object.__setattr__(params, "bad_words_token_ids", bad_ids)
    if params.allowed_token_ids is not None:
        object.__setattr__(params, "allowed_token_ids", tuple(params.allowed_token_ids))


def _check_int(name: str, value: object, *, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParamsError(f"{name} is {value!r}; it must be a whole number from {low} to {high}.")


def _check_float(name: str, value: object, *, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type,operator]
        raise InvalidParamsError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}.")
