"""What of an extraction or an index changes while one looks: its state, and its stages as rows of a table. Pure."""

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


def staged_look(shown: Staged) -> Look:
    """Return the page of what comes by stages: its state, and how far each of them is."""
    values: dict[str, Shown] = {"state": (formats.state_name(shown.status), formats.tone(shown.status))}
    return Look.of(values | _places(shown.stages), shown.status, len(shown.stages), shown.reason)


def _places(stages: Sequence[CourseStage[Any]]) -> dict[str, Shown]:
    """Return how far each is, by the name of its place."""
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
