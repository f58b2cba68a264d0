"""Numeric sampling parameters, each with its range: accepted by the API and run by the engine.

To add one, give it a range here and declare it, with its default, in `engine.params` and in `jobs.lines.sampling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

MAX_N = 128
MAX_LOGPROBS = 20
"""Most alternatives per token, as in OpenAI's API."""
MAX_SEED = 2**63 - 1
MAX_INT = 2**31 - 1
"""Largest token id and token count."""
MAX_PENALTY = 2.0
MAX_TEMPERATURE = 2.0
"""Of the API, as OpenAI documents it."""
MAX_BIAS = 100.0
MAX_REPETITION = 1e3
MIN_REPETITION = 1e-3
"""Below this, fp32 logits divided by it would overflow for some models."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole numbers from `low` to `high`."""

    low: int
    high: int

    def is_kind(self, value: object) -> TypeGuard[int]:
        """Return whether a value is a whole number, in range or not; True and False are not."""
        return isinstance(value, int) and not isinstance(value, bool)

    def __contains__(self, value: object) -> bool:
        return self.is_kind(value) and self.low <= value <= self.high

    def holds_all(self, values: Sequence[Any]) -> bool:
        """Return whether all of these are in the range, in half the time of separate checks."""
        is_plain = set(map(type, values)) == {int} and self.low <= min(values) and max(values) <= self.high
        return is_plain or all(value in self for value in values)

    def __str__(self) -> str:
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers from `low` to `high`, whole or not."""

    low: float
    high: float

    def is_kind(self, value: object) -> TypeGuard[float]:
        """Return whether a value is a number, in range or not; True and False are not."""
        return isinstance(value, int | float) and not isinstance(value, bool)

    def __contains__(self, value: object) -> bool:
        return self.is_kind(value) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"


Range = Whole | Number

TOKEN_ID = Whole(0, MAX_INT)
BIAS = Number(-MAX_BIAS, MAX_BIAS)

RANGES: Mapping[str, Range] = {
    "n": Whole(1, MAX_N),
    "temperature": Number(0.0, 1e6),
    "top_p": Number(0.0, 1.0),
    "top_k": Whole(-1, MAX_INT),
    "min_p": Number(0.0, 1.0),
    "presence_penalty": Number(-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": Number(-MAX_PENALTY, MAX_PENALTY),
    "repetition_penalty": Number(MIN_REPETITION, MAX_REPETITION),
    "seed": Whole(-MAX_SEED - 1, MAX_SEED),
    "max_tokens": Whole(0, MAX_INT),
    "min_tokens": Whole(0, MAX_INT),
    "logprobs": Whole(0, MAX_LOGPROBS),
    "prompt_logprobs": Whole(0, MAX_LOGPROBS),
}
"""Ranges of all numeric parameters of the engine."""

API_RANGES: Mapping[str, Range] = {**RANGES, "temperature": Number(0.0, MAX_TEMPERATURE)}
"""Ranges of all numeric parameters of requests."""
