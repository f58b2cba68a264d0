"""The rows of a step over groups: each has the values that its rows share, and its prompt sees all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from features.pipelines.preparing import SourceRow
from features.pipelines.rows.lines.grouping import COUNT_COLUMN, MAX_GROUP_BYTES, Group, grouped
from jobs.settings import Settings


def groups(rows: Iterable[SourceRow], columns: Sequence[str], *, settings: Settings) -> Iterator[SourceRow]:
    """Yield a row for each group, in order of first occurrence. Raise what `grouped` raises."""
    grouped_rows = grouped((row.values for row in rows), columns, max_bytes=settings.max_file_bytes)
    for number, group in enumerate(grouped_rows, start=1):
        yield SourceRow(
            custom_id=f"group-{number:09d}",
            values={**group.values, COUNT_COLUMN: group.num_rows},
            rows=group.rows,
            error=None if group.rows is not None else _too_large(group),
        )


def _too_large(group: Group) -> str:
    return (
        f"the {group.num_rows:,} rows of this group have more than {MAX_GROUP_BYTES:,} bytes as JSON, which is the "
        "limit for a prompt; group by more columns"
    )
