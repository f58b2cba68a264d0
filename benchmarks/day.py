"""The file of a recorded day: a header line, then one line per batch, in order of arrival. No prompts, no answers.

Times are seconds from the start of the day.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from jobs.day_record import RecordedBatch, Span
from jobs.states import Priority

_VERSION = 1


class DayError(ValueError):
    """A file does not contain a day that can be replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayBatch:
    """One batch, and its outcome."""

    tenant: str
    weight: float
    model: str
    priority: Priority
    arrival: float
    deadline: float
    first_answer: float
    end: float
    max_tokens: int
    worker_seconds: float
    lines: list[tuple[int, int, int]]
    """Tokens of the prompt, those of them that were cached, and tokens of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The batches of one model."""

    model: str
    num_workers: int | None
    """The number of active workers; None if it was not recorded."""
    batches: list[DayBatch]


def write_day(out: TextIO, span: Span, batches: Iterable[RecordedBatch], *, start: datetime) -> int:
    """Write a day; return the number of its batches."""
    head = {"object": "day", "version": _VERSION, "start": start.isoformat(), **asdict(span)}
    out.write(json.dumps(head) + "\n")
    num_batches = 0
    for batch in batches:
        out.write(json.dumps(_line(batch, start)) + "\n")
        num_batches += 1
    return num_batches


def _line(batch: RecordedBatch, start: datetime) -> dict[str, Any]:
    def seconds(moment: datetime) -> float:
        return round((moment - start).total_seconds(), 3)

    return {
        "tenant": batch.tenant,
        "weight": batch.weight,
        "model": batch.model,
        "priority": batch.priority,
        "arrival": seconds(batch.arrived_at),
        "deadline": seconds(batch.deadline_at),
        "first_answer": seconds(batch.first_answer_at),
        "end": seconds(batch.ended_at),
        "max_tokens": batch.max_tokens,
        "worker_seconds": batch.worker_seconds,
        "lines": batch.lines,
    }


def read_day(path: Path, *, model: str | None = None) -> Day:
    """Return the batches of a model, or of the only one. Raises DayError."""
    try:
        with path.open(encoding="utf-8") as file:
            head, *lines = [json.loads(line) for line in file]
        if (head["object"], head["version"]) != ("day", _VERSION):
            raise DayError(f"{path} is a day of version {head['version']!r}; this release reads {_VERSION}.")
        batches = [_batch(line) for line in lines]
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, DayError):
            raise
        raise DayError(f"{path} is not a day written by `tokenmill bench record`: {error!r}.") from error
    models = sorted({batch.model for batch in batches})
    if not models:
        raise DayError(f"{path} has no batch. Record a span in which batches ended.")
    if model is None and len(models) > 1:
        raise DayError(f"{path} has batches of {', '.join(models)}, each with its own queue: choose one with --model.")
    name = model or models[0]
    if name not in models:
        raise DayError(f"{path} has no batch of {name!r}; it has batches of {', '.join(models)}.")
    num_workers: Mapping[str, int] = head["num_workers"]
    own = sorted((batch for batch in batches if batch.model == name), key=lambda batch: batch.arrival)
    return Day(model=name, num_workers=num_workers.get(name), batches=own)


def _batch(line: dict[str, Any]) -> DayBatch:
    lines = [(int(prompt), int(cached), int(answered)) for prompt, cached, answered in line["lines"]]
    if not lines:
        raise ValueError("a batch has no lines")
    return DayBatch(**{**line, "priority": Priority(line["priority"]), "lines": lines})
