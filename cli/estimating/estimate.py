"""Estimates the tokens of a batch: prompts as counted, answers at most and likely.

A likely answer is the typical one for the schema of a line, counted like a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import orjson

from cli.disk.input_scan import named_lines
from cli.estimating.typical_answer import typical_answer
from features.pipelines.rows.lines.requests import ENDPOINT

LIKELY_BASIS = "answers as the typical one of their schema, with a fifth of what may be null taken as null"
NO_SCHEMA = "unknown: there is no estimate for answers without a schema"
_SAMPLE_ENDPOINT = "/v1/completions"
"""Its prompts are plain texts, without a chat template."""
_NUM_SAMPLES = 64
"""Number of lines whose schemas are sampled, evenly spread."""
_NUM_FULL, _NUM_EMPTY = 4, 1
"""Weights of a line's typical answers, with all values and with null wherever allowed: 17 % of the values of the
tutorial's documents are null."""
_END_TOKENS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The token counts of lines at a place."""

    num_lines: int
    input_tokens: int
    output_tokens: int
    """With every answer of maximum length."""
    basis: str
    """How the tokens were counted."""
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

    def plus(self, other: Estimate) -> Estimate:
        return Estimate(
            num_lines=self.num_lines + other.num_lines,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=_sum(self.output_tokens, other.output_tokens),
            most_tokens=_sum(self.most_tokens, other.most_tokens),
        )

    def share(self, part: float, *, most_tokens: int | None) -> Estimate:
        """Return a fraction of the likely tokens, with its own upper bound."""
        return Estimate(
            num_lines=round(part * self.num_lines),
            input_tokens=round(part * self.input_tokens),
            output_tokens=None if self.output_tokens is None else round(part * self.output_tokens),
            most_tokens=most_tokens,
        )

    def shown(self) -> str:
        """Return such as `likely 22,342 (15,822 in, 6,520 out), at most 28,942`."""
        most = "no bound is known" if self.most_tokens is None else f"at most {self.most_tokens:,}"
        return f"{self.likely()}, {most}"

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
    likely = _likely_output(place, lines, counted)
    most = counted.input_tokens + counted.output_tokens
    estimate = Estimate(
        num_lines=counted.num_lines, input_tokens=counted.input_tokens, output_tokens=likely, most_tokens=most
    )
    basis = NO_SCHEMA if likely is None else LIKELY_BASIS
    return estimate, {**counted.fields, "tokens": estimate.shown(), "counted": counted.basis, "likely": basis}


def _likely_output(place: Counting, lines: Path, counted: Counted) -> int | None:
    with TemporaryDirectory(prefix="tokenmill-") as folder:
        samples = Path(folder) / "answers.jsonl"
        num_samples = _write_samples(samples, lines, num_lines=counted.num_lines)
        if num_samples == 0:
            return None
        tokens = place.count(samples, endpoint=_SAMPLE_ENDPOINT).input_tokens / num_samples + _END_TOKENS
    return min(round(tokens * counted.num_lines), counted.output_tokens)


def _write_samples(path: Path, lines: Path, *, num_lines: int) -> int:
    """Write the typical answers of sampled lines as prompts, each as often as its line has answers.

    Returns the number of typical answers; 0 if a line has no schema.
    """
    num_samples, numbers = 0, count()
    with path.open("wb") as file:
        for _, raw in islice(named_lines(lines), 0, None, max(1, num_lines // _NUM_SAMPLES)):
            body = orjson.loads(raw)["body"]
            schema = _schema_of(body)
            if schema is None:
                return 0
            for text in _typical(schema):
                num_samples += 1
                for _ in range(body.get("n") or 1):
                    file.write(_completion(text, model=body["model"], number=next(numbers)))
    return num_samples


def _schema_of(body: Mapping[str, Any]) -> Any:
    return (body.get("response_format") or {}).get("json_schema", {}).get("schema")


def _typical(schema: Any) -> Iterator[str]:
    yield from [typical_answer(schema)] * _NUM_FULL
    yield from [typical_answer(schema, is_empty=True)] * _NUM_EMPTY


def _completion(prompt: str, *, model: str, number: int) -> bytes:
    body = {"model": model, "prompt": prompt, "max_tokens": 1}
    line = {"custom_id": str(number), "method": "POST", "url": _SAMPLE_ENDPOINT, "body": body}
    return orjson.dumps(line) + b"\n"
