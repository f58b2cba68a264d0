"""What a pipeline's first step would send: its first lines, and an estimate of its first rows. Runs nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from jobs.errors import InputError
from jobs.lines.input_estimate import InputEstimate, InputEstimator
from jobs.pipelines.context import RunContext
from jobs.pipelines.external import ExternalStore
from jobs.pipelines.requests import line_of
from jobs.pipelines.source_files import TakenFiles, take_files
from jobs.pipelines.spec import Step
from jobs.settings import Settings
from pipelines.sources.source import Row
from pipelines.templates.renderer import Renderer, RowError
from pipelines.templates.template import check

MAX_ROWS = 1000
SHOWN_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Of the first MAX_ROWS rows."""

    lines: list[dict[str, Any]]
    """The first SHOWN_LINES of them."""
    num_rows: int
    num_failed: int
    """Rows that cannot be rendered."""
    first_error: str | None
    has_more: bool
    """There are rows beyond them."""
    num_files: int
    size_bytes: int
    """Of all files."""
    estimate: InputEstimate


def preview(store: ExternalStore, context: RunContext, settings: Settings) -> Preview:
    """Read and render the first rows of the first step, as if no run had taken any. Raises InputError, ServiceError."""
    step = context.definition.steps[0]
    taken = take_files(store, context, step, lambda found: found)
    estimator = InputEstimator(default_max_tokens=settings.default_max_tokens)
    shown: list[dict[str, Any]] = []
    errors: list[str] = []
    num_rows = 0
    for outcome in _lines(context, step, islice(taken.rows, MAX_ROWS)):
        num_rows += 1
        if isinstance(outcome, RowError):
            errors.append(outcome.message)
            continue
        estimator.feed(outcome + b"\n")
        if len(shown) < SHOWN_LINES:
            shown.append(orjson.loads(outcome))
    return Preview(
        lines=shown,
        num_rows=num_rows,
        num_failed=len(errors),
        first_error=errors[0] if errors else None,
        has_more=_has_more(taken),
        num_files=len(taken.files),
        size_bytes=sum(file.size_bytes for file in taken.files),
        estimate=estimator.finish(),
    )


def source_store_of(step: Step) -> str:
    """Return the store of a first step. Raises InputError where it has none."""
    if step.source.store is None:
        raise InputError("steps.0.source: a first step takes the files of a store", param="steps.0.source")
    return step.source.store


def _has_more(taken: TakenFiles) -> bool:
    return next(taken.rows, None) is not None


def _lines(context: RunContext, step: Step, rows: Iterator[Row]) -> Iterator[bytes | RowError]:
    numbers: deque[int] = deque()

    def contexts() -> Iterator[dict[str, Any]]:
        for number, row in enumerate(rows, start=1):
            numbers.append(number)
            yield {**row.values, "row": dict(row.values), "run": context.shown()}

    with Renderer(check(step.prompt)) as renderer:
        for outcome in renderer.render(contexts()):
            number = numbers.popleft()
            if isinstance(outcome, RowError):
                yield outcome
            else:
                yield line_of(step, f"row-{number:09d}", messages=outcome.messages)
