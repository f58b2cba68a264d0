"""Previews a pipeline's first step: its first lines, and an estimate of its first rows. Runs nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from features.pipelines.context import RunContext
from features.pipelines.preparing import SourceRow
from features.pipelines.requests import line_of
from features.pipelines.rows.templates.cpu_time import CpuTime
from features.pipelines.rows.templates.renderer import Renderer, RowError
from features.pipelines.rows.templates.template import parse
from features.pipelines.settings import PipelineSettings
from features.pipelines.sources.store_files import TakenFiles
from features.pipelines.spec import Step
from jobs.lines.input_estimate import InputEstimate, InputEstimator

MAX_ROWS = 1000
SHOWN_LINES = 3
_CPU_SECONDS = 60.0
"""Limit for all rows, unless that of a run is lower: the caller waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A preview of the first MAX_ROWS rows."""

    lines: list[dict[str, Any]]
    """The first SHOWN_LINES lines."""
    num_rows: int
    num_failed: int
    """Rows that cannot be rendered."""
    first_error: str | None
    has_more: bool
    """Whether there are more rows."""
    num_files: int
    size_bytes: int
    """Size of all files."""
    notes: Sequence[str]
    """How files are read that are not as their format usually is."""
    estimate: InputEstimate


def preview(taken: TakenFiles, context: RunContext, settings: PipelineSettings) -> Preview:
    """Read and render the first rows of the first step. Raise InputError or ServiceError."""
    step = context.definition.steps[0]
    estimator = InputEstimator(default_max_tokens=settings.default_max_tokens)
    lines: list[dict[str, Any]] = []
    errors: list[str] = []
    num_rows = 0
    cpu = CpuTime(allowed_seconds=min(_CPU_SECONDS, settings.run_template_seconds))
    for outcome in _lines(context, step, islice(taken.rows, MAX_ROWS), cpu=cpu):
        num_rows += 1
        if isinstance(outcome, RowError):
            errors.append(outcome.message)
            continue
        estimator.feed(outcome + b"\n")
        if len(lines) < SHOWN_LINES:
            lines.append(orjson.loads(outcome))
    return Preview(
        lines=lines,
        num_rows=num_rows,
        num_failed=len(errors),
        first_error=errors[0] if errors else None,
        has_more=_has_more(taken),
        num_files=len(taken.files),
        size_bytes=sum(file.size_bytes for file in taken.files),
        notes=taken.notes,
        estimate=estimator.finish(),
    )


def _has_more(taken: TakenFiles) -> bool:
    return next(taken.rows, None) is not None


def _lines(context: RunContext, step: Step, rows: Iterator[SourceRow], *, cpu: CpuTime) -> Iterator[bytes | RowError]:
    custom_ids: deque[str] = deque()
    template = parse(step.prompt)

    def contexts() -> Iterator[Mapping[str, Any]]:
        for row in rows:
            custom_ids.append(row.custom_id)
            yield row.shown(template, context)

    with Renderer(template, cpu=cpu) as renderer:
        for outcome in renderer.render(contexts()):
            custom_id = custom_ids.popleft()
            if isinstance(outcome, RowError):
                yield outcome
            else:
                yield line_of(step, custom_id, messages=outcome.messages)
