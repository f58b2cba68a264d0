"""What a batch of lines would take: its prompts as they are counted, its answers at most and as they are likely.

A likely answer is the typical one of the schema that a line asks for, counted as a
prompt of its own.
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
from cli.places.typical_answer import typical_answer
from features.pipelines.rows.lines.requests import ENDPOINT

LIKELY_BASIS = "answers as the typical one of their schema, with a fifth of what may be null taken as null"
NO_SCHEMA = "unknown: nothing tells how long answers without a schema are"
_SAMPLE_ENDPOINT = "/v1/completions"
"""Its prompts are texts as they are, without a chat template."""
_NUM_SAMPLES = 64
"""Lines whose schemas are looked at, evenly spread."""
_NUM_FULL, _NUM_EMPTY = 4, 1
"""Of a line's typical answers: with all values, and with null wherever it may be. 17 % of what the tutorial's documents
are asked for is null."""
_END_TOKENS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a place says of lines."""

    num_lines: int
    input_tokens: int
    output_tokens: int
    """With every answer as long as it may be."""
    basis: str
    """How the tokens were counted."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What else is to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Tokens of lines, or of several batches together."""

    num_lines: int
    input_tokens: int
    output_tokens: int | None
    """Those that are likely; None where nothing is known."""
    most_tokens: int | None
    """Prompts and answers together; None where there is no bound."""

    def plus(self, other: Estimate) -> Estimate:
        return Estimate(
            num_lines=self.num_lines + other.num_lines,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=_sum(self.output_tokens, other.output_tokens),
            most_tokens=_sum(self.most_tokens, other.most_tokens),
        )

    def share(self, part: float, *, most_tokens: int | None) -> Estimate:
        """Return so large a part of what is likely, with a bound of its own."""
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
        """Return the first part of that."""
        if self.output_tokens is None:
            return f"{self.input_tokens:,} in"
        total = self.input_tokens + self.output_tokens
        return f"likely {total:,} ({self.input_tokens:,} in, {self.output_tokens:,} out)"


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


class Counting(Protocol):
    """Whatever counts the tokens of lines."""

    def count(self, lines: Path, *, endpoint: str = ENDPOINT) -> Counted:
        """Return what a batch of these lines would take, with every answer as long as it may be."""


def estimated(place: Counting, lines: Path) -> tuple[Estimate, dict[str, str]]:
    """Return what a batch of these lines would take, as numbers and as fields to be shown."""
    counted = place.count(lines)
    likely = _likely_output(place, lines, counted)
    most = counted.input_tokens + counted.output_tokens
    found = Estimate(
        num_lines=counted.num_lines, input_tokens=counted.input_tokens, output_tokens=likely, most_tokens=most
    )
    basis = NO_SCHEMA if likely is None else LIKELY_BASIS
    return found, {**counted.fields, "tokens": found.shown(), "counted": counted.basis, "likely": basis}


def _likely_output(place: Counting, lines: Path, counted: Counted) -> int | None:
    with TemporaryDirectory(prefix="tokenmill-") as folder:
        samples = Path(folder) / "answers.jsonl"
        num_samples = _write_samples(samples, lines, num_lines=counted.num_lines)
        if num_samples == 0:
            return None
        tokens = place.count(samples, endpoint=_SAMPLE_ENDPOINT).input_tokens / num_samples + _END_TOKENS
    return min(round(tokens * counted.num_lines), counted.output_tokens)


def _write_samples(path: Path, lines: Path, *, num_lines: int) -> int:
    """Write the typical answers of some lines as prompts, each as often as the line asks for answers.

    Returns how many typical answers there are; 0 where a line has no schema.
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
