"""What was answered about a document: the result of each line that asked it. Knows no file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

TOO_LONG_CODE = "context_length_exceeded"
"""Of a line whose prompt and longest answer have more tokens than the model takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """What became of a line: a text, or an error."""

    text: str = ""
    error: Mapping[str, Any] | None = None
    """Its code and message."""
    input_tokens: int = 0
    cached_tokens: int = 0
    """Of the input: those whose work was done for another line that began with the same."""
    output_tokens: int = 0
    logprobs: Sequence[Mapping[str, Any]] = ()
    """Of the text's tokens, as the API answers them; none where they were not asked for."""

    def to_body(self) -> dict[str, Any]:
        """Return the answer as a line that is to be grounded holds it."""
        return {"text": self.text, "logprobs": self.logprobs} if self.error is None else {"error": self.error}

    @classmethod
    def from_body(cls, answer: Mapping[str, Any]) -> Self:
        """Return what such a line holds; what it took stands elsewhere in it."""
        return cls(**answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The results of all questions about one document."""

    first: Sequence[LineResult]
    """Of each group."""
    second_readings: Mapping[int, LineResult] = field(default_factory=dict)
    """By the number of their group; one that failed tells nothing."""
    again: Sequence[Mapping[str, LineResult]] = ()
    """To each round of further questions, by their keys; where one failed, what was answered before is all there is."""
    covered: Mapping[int, LineResult] = field(default_factory=dict)
    """With every value that was found covered, by the number of their group; one that failed tells nothing."""

    @property
    def usage(self) -> dict[str, int]:
        """Return what all of them took together."""
        of_groups = (result for results in (self.second_readings, self.covered) for result in results.values())
        of_rounds = (result for results in self.again for result in results.values())
        return usage_of([*self.first, *of_groups, *of_rounds])


def result_of(line: Mapping[str, Any]) -> LineResult:
    """Return what a line of an output or error file of a batch of chat completions says."""
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
    """Return what these lines took together."""
    found = list(results)
    return {
        "input_tokens": sum(result.input_tokens for result in found),
        "cached_tokens": sum(result.cached_tokens for result in found),
        "output_tokens": sum(result.output_tokens for result in found),
    }
