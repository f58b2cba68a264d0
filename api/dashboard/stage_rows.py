"""The changing values of an extraction's or an index's page: its state, and its stages as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

from api.dashboard import formats
from api.dashboard.bars import bar, full_bar
from api.dashboard.live import Look, Shown
from api.schemas.stages import CourseStage


class Staged(Protocol):
    """An object whose work goes through stages."""

    @property
    def status(self) -> StrEnum: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def stages(self) -> Sequence[CourseStage[Any]]: ...


def staged_look(staged: Staged) -> Look:
    """Return the look of an object with stages: its state, and the progress of each stage."""
    values: dict[str, Shown] = {"state": (formats.state_name(staged.status), formats.tone(staged.status))}
    return Look.of(values | _places(staged.stages), staged.status, len(staged.stages), staged.reason)


def _places(stages: Sequence[CourseStage[Any]]) -> dict[str, Shown]:
    """Return the progress of each stage, by the name of its place."""
    values: dict[str, Shown] = {}
    for n, stage in enumerate(stages):
        counts = stage.request_counts
        completed, failed, total = (0, 0, 0) if counts is None else (counts.completed, counts.failed, counts.total)
        is_empty = not total and stage.done_at is not None
        values |= {
            f"{n}.lines": f"{completed + failed:,} / {total:,}" if total else formats.NOTHING,
            f"{n}.failed": f"{failed:,} failed" if failed else "",
            **(full_bar(str(n)) if is_empty else bar(str(n), completed=completed, failed=failed, total=total)),
        }
    return values
