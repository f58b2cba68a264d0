"""The answers about a document: the result of each line that asked it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TOO_LONG_CODE = "context_length_exceeded"
"""Error of a line whose prompt and longest answer exceed the model's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """The result of a line: a text, or an error."""

    text: str = ""
    error: Mapping[str, Any] | None = None
    """Its code and message."""
    input_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens already computed for another line with the same prefix."""
    output_tokens: int = 0
    logprobs: Sequence[Mapping[str, Any]] = ()
    """Of the text's tokens, in the API's format; empty if not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The results of all questions about one document."""

    first: Sequence[LineResult]
    """One per group."""
    second_readings: Mapping[int, LineResult] = field(default_factory=dict)
    """By group number; failed ones are ignored."""
    again: Sequence[Mapping[str, LineResult]] = ()
    """For each round of further questions, by question key; a failed one leaves earlier answers unchanged."""
    covered: Mapping[int, LineResult] = field(default_factory=dict)
    """With every found value covered, by group number; failed ones are ignored."""

    @property
    def usage(self) -> dict[str, int]:
        """Return the total token counts."""
        of_groups = (result for results in (self.second_readings, self.covered) for result in results.values())
        of_rounds = (result for results in self.again for result in results.values())
        return usage_of([*self.first, *of_groups, *of_rounds])


def result_of(line: Mapping[str, Any]) -> LineResult:
    """Return the result in a line of the output or error file of a chat completion batch."""
    body = (line.get("response") or {}).get("body") or {}
    error = line.get("error") or body.get("error")
    if error:
        return LineResult(error={"code": error.get("code") or "failed", "message": error.get("message") or ""})
    usage, choice = body.get("usage") or {}, body["choices"][0]
    return LineResult(
        text=choice["message"].get("content") or "",
        logprobs=(choice.get("logprobs") or {}).get("content") or (),
        input_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        output_tokens=usage.get("completion_tokens", 0),
    )


def usage_of(results: Iterable[LineResult]) -> dict[str, int]:
    """Return the total token counts of these results."""
    counted = list(results)
    return {
        "input_tokens": sum(result.input_tokens for result in counted),
        "cached_tokens": sum(result.cached_tokens for result in counted),
        "output_tokens": sum(result.output_tokens for result in counted),
    }
