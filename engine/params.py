"""What a request asks of the sampler: `SamplingParams`, under the names of vLLM's class.

Knows nothing of models, text or batches; a parameter that is not here is not supported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import InvalidParamsError

MAX_LOGPROBS = 20
"""Most alternatives per token, as in OpenAI's API."""
MAX_N = 128
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Say how tokens are chosen and when a request ends. Raises InvalidParamsError on a value out of range.

    `stop` may be given as one string and `stop_token_ids` as any sequence; both are kept as tuples.
    `max_tokens=None` means up to the model's context. `top_k` 0 or −1, `top_p` 1 and `min_p` 0 switch a filter off.
    `temperature=0` is greedy. `seed=None` lets the engine derive one per request; child i of n uses seed + i.
    `logprobs=k` reports the chosen token and the k most likely ones of the raw distribution.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

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
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, low=0, high=MAX_LOGPROBS)
        self._check_stops()

    def _check_stops(self) -> None:
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidParamsError(f"stop holds {text!r}; every stop string must be a non-empty string.")
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, low=0, high=2**31 - 1)
        if self.stop and not self.detokenize:
            raise InvalidParamsError("stop is given with detokenize=False; stop strings need the text. Drop one.")

    @property
    def is_greedy(self) -> bool:
        """Tell whether the most likely token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def has_filter(self) -> bool:
        """Tell whether top-k or top-p cuts the distribution, which needs the most likely tokens in order."""
        return self.top_k > 1 or self.top_p < 1.0


def _set_tuples(params: SamplingParams) -> None:
    # None is what clients send for "not given"; it and () mean the same here.
    stop = params.stop if params.stop is not None else ()
    ids = params.stop_token_ids if params.stop_token_ids is not None else ()
    object.__setattr__(params, "stop", (stop,) if isinstance(stop, str) else tuple(stop))
    object.__setattr__(params, "stop_token_ids", tuple(ids))


def _check_int(name: str, value: object, *, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParamsError(f"{name} is {value!r}; it must be a whole number from {low} to {high}.")


def _check_float(name: str, value: object, *, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type,operator]
        raise InvalidParamsError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}.")
