"""Estimates the tokens of a batch: prompts as counted, answers at most and likely.

A likely answer is the typical one for the schema of a line, counted like a prompt, behind as many thoughts as the
model was measured to have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import orjson

from cli.disk.input_scan import named_lines
from cli.estimating.typical_answer import typical_answer
from features.pipelines.rows.lines.requests import ENDPOINT
from jobs.lines.body_template import BUDGET, VARIABLES

LIKELY_BASIS = "answers as the typical one of their schema, with a fifth of what may be null taken as null"
NO_THOUGHTS = "unknown: the model may think, and how long it does was not measured. thinking_token_budget limits that"
NO_SCHEMA = "unknown: there is no estimate for answers without a schema"
_SAMPLE_ENDPOINT = "/v1/completions"
"""Its prompts are plain texts, without a chat template."""
_NUM_SAMPLES = 64
"""Number of lines whose schemas are sampled, evenly spread."""
_NUM_FULL, _NUM_EMPTY = 4, 1
"""Weights of a line's typical answers, with all values and with null wherever allowed: 17 % of the values of the
tutorial's documents are null."""
_END_TOKENS = 1
_PROMPTS = frozenset({"messages", "prompt"})
_BOUNDS = ("max_tokens", "max_completion_tokens")
_SWITCHES = ("enable_thinking", "thinking")
"""Variables of chat templates that switch thoughts off when they are false."""
_OPEN_END = ", more where an answer without max_tokens runs on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The token counts of lines at a place."""

    num_lines: int
    input_tokens: int
    output_tokens: int
    """With every answer of maximum length."""
    basis: str
    """How the tokens were counted."""
    thoughts: float | None = None
    """Tokens of the thoughts before an answer of this model, as measured; None if none were."""
    may_think: bool = False
    """Whether the lines leave room for thoughts; False also where that is not known."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Further fields to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Tokens of lines, or of several batches together."""

    num_lines: int
    input_tokens: int
    output_tokens: int | None
    """Likely tokens; None if unknown."""
    most_tokens: int | None
    """Upper bound of prompts and answers together; None if there is none."""
    is_bounded: bool = True
    """Whether that holds: an answer without max_tokens may become longer than is counted for it."""

    def plus(self, other: Estimate) -> Estimate:
        return Estimate(
            num_lines=self.num_lines + other.num_lines,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=_sum(self.output_tokens, other.output_tokens),
            most_tokens=_sum(self.most_tokens, other.most_tokens),
            is_bounded=self.is_bounded and other.is_bounded,
        )

    def share(self, part: float, *, most_tokens: int | None) -> Estimate:
        """Return a fraction of the likely tokens, with its own upper bound."""
        return Estimate(
            num_lines=round(part * self.num_lines),
            input_tokens=round(part * self.input_tokens),
            output_tokens=None if self.output_tokens is None else round(part * self.output_tokens),
            most_tokens=most_tokens,
            is_bounded=self.is_bounded,
        )

    def shown(self) -> str:
        """Return such as `likely 22,342 (15,822 in, 6,520 out), at most 28,942`."""
        most = "no bound is known" if self.most_tokens is None else f"at most {self.most_tokens:,}"
        return f"{self.likely()}, {most}{'' if self.is_bounded else _OPEN_END}"

    def likely(self) -> str:
        """Return `shown` without the upper bound."""
        if self.output_tokens is None:
            return f"{self.input_tokens:,} in"
        total = self.input_tokens + self.output_tokens
        return f"likely {total:,} ({self.input_tokens:,} in, {self.output_tokens:,} out)"


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


class Counting(Protocol):
    """A counter of the tokens of lines."""

    def count(self, lines: Path, *, endpoint: str = ENDPOINT) -> Counted:
        """Return the tokens of a batch of these lines, with answers of maximum length."""


def estimated(place: Counting, lines: Path) -> tuple[Estimate, dict[str, str]]:
    """Return the estimate of a batch of these lines, as numbers and as fields to show."""
    counted = place.count(lines)
    sample = _Sample.of(lines, counted)
    likely, basis = _likely_output(place, sample, counted)
    estimate = Estimate(
        num_lines=counted.num_lines,
        input_tokens=counted.input_tokens,
        output_tokens=likely,
        most_tokens=counted.input_tokens + counted.output_tokens,
        is_bounded=sample.is_bounded,
    )
    return estimate, {**counted.fields, "tokens": estimate.shown(), "counted": counted.basis, "likely": basis}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """Bodies of some lines, evenly spread, without their prompts, which may be long."""

    bodies: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, lines: Path, counted: Counted) -> _Sample:
        step = max(1, counted.num_lines // _NUM_SAMPLES)
        return cls(bodies=[_without_prompt(raw) for _, raw in islice(named_lines(lines), 0, None, step)])

    @property
    def is_bounded(self) -> bool:
        """Whether each line bounds its answers."""
        return all(any(body.get(name) is not None for name in _BOUNDS) for body in self.bodies)

    def thoughts(self, counted: Counted) -> float | None:
        """Return the likely tokens of thoughts of a line; None if they are unknown."""
        numbers = [_thoughts(body, counted) for body in self.bodies]
        known = [one for one in numbers if one is not None]
        return sum(known) / max(1, len(known)) if len(known) == len(numbers) else None


def _without_prompt(raw: bytes) -> dict[str, Any]:
    return {name: value for name, value in orjson.loads(raw)["body"].items() if name not in _PROMPTS}


def _thoughts(body: Mapping[str, Any], counted: Counted) -> float | None:
    """Return the likely tokens of thoughts of a line's answers; None if they are unknown."""
    budget, variables = body.get(BUDGET), body.get(VARIABLES) or {}
    if budget == 0 or any(variables.get(name) is False for name in _SWITCHES):
        return 0.0
    if counted.thoughts is None:
        return None if counted.may_think else 0.0
    return (body.get("n") or 1) * min(counted.thoughts, counted.thoughts if budget is None else budget)


def _likely_output(place: Counting, sample: _Sample, counted: Counted) -> tuple[int | None, str]:
    """Return the likely tokens of all answers, None if they are unknown; and what that is based on."""
    thoughts = sample.thoughts(counted)
    if thoughts is None:
        return None, NO_THOUGHTS
    with TemporaryDirectory(prefix="tokenmill-") as folder:
        path = Path(folder) / "answers.jsonl"
        num_answers = _write_typical(path, sample)
        if num_answers == 0:
            return None, NO_SCHEMA
        tokens = place.count(path, endpoint=_SAMPLE_ENDPOINT).input_tokens / num_answers + _END_TOKENS
    basis = f"{LIKELY_BASIS}, behind {thoughts:,.0f} tokens of thoughts" if thoughts else LIKELY_BASIS
    return min(round((tokens + thoughts) * counted.num_lines), counted.output_tokens), basis


def _write_typical(path: Path, sample: _Sample) -> int:
    """Write the typical answers of sampled lines as prompts, each as often as its line has answers.

    Returns the number of typical answers; 0 if a line has no schema.
    """
    num_answers, numbers = 0, count()
    with path.open("wb") as file:
        for body in sample.bodies:
            schema = _schema_of(body)
            if schema is None:
                return 0
            for text in _typical(schema):
                num_answers += 1
                for _ in range(body.get("n") or 1):
                    file.write(_completion(text, model=body["model"], number=next(numbers)))
    return num_answers


def _schema_of(body: Mapping[str, Any]) -> Any:
    return (body.get("response_format") or {}).get("json_schema", {}).get("schema")


def _typical(schema: Any) -> Iterator[str]:
    yield from [typical_answer(schema)] * _NUM_FULL
    yield from [typical_answer(schema, is_empty=True)] * _NUM_EMPTY


def _completion(prompt: str, *, model: str, number: int) -> bytes:
    body = {"model": model, "prompt": prompt, "max_tokens": 1}
    line = {"custom_id": str(number), "method": "POST", "url": _SAMPLE_ENDPOINT, "body": body}
    return orjson.dumps(line) + b"\n"
