"""The stages of an extraction or an index as rows of a table: what of them changes while one looks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from api.dashboard import formats
from api.dashboard.live import Shown
from api.schemas.extractions import StageObject
from api.schemas.indexes import IndexStageObject


def stage_places(stages: Sequence[StageObject | IndexStageObject]) -> dict[str, Shown]:
    """Return how far each is, by the name of its place."""
    values: dict[str, Shown] = {}
    for n, stage in enumerate(stages):
        counts = stage.request_counts
        done = 0 if counts is None else counts.completed + counts.failed
        total = 0 if counts is None else counts.total
        values |= {
            f"{n}.lines": f"{done:,} / {total:,}" if total else formats.NOTHING,
            f"{n}.done": str(round(1000 * done / total) if total else 1000 * (stage.done_at is not None)),
            f"{n}.failed": f"{counts.failed:,} failed" if counts is not None and counts.failed else "",
        }
    return values
