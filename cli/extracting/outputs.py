"""The output files of an extraction: records, a table of the fields, a report page."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from cli.disk.download import replacing
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.report.page import report
from features.documents.record_table import open_parquet, row_of, table_columns
from features.pipelines.rows.outputs.tables import TableWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The paths of the outputs."""

    records: Path
    table: Path | None = None
    report: Path | None = None

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.records, self.table, self.report) if path is not None]


def write_outputs(records: Iterator[dict[str, Any]], outputs: Outputs, *, schema: FieldSchema) -> None:
    """Write records and the table, each file replaced once complete."""
    with ExitStack() as closing:
        rows: TableWriter | None = None
        columns = {} if outputs.table is None else table_columns(schema)
        if outputs.table is not None:
            target = closing.enter_context(replacing(outputs.table))
            rows = closing.enter_context(open_parquet(target, columns))
        file = closing.enter_context(replacing(outputs.records))
        for record in records:
            file.write(orjson.dumps(record) + b"\n")
            if rows is not None:
                rows.write(row_of(record, columns))


class MostDoubtful:
    """Keeps the records that need review most, as many as a page can show."""

    def __init__(self, most: int = 200) -> None:
        self._most = most
        self._kept: list[tuple[int, int, dict[str, Any]]] = []
        self.num_records = 0

    def passing(self, records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for record in records:
            self.num_records += 1
            doubts = sum(each["review"] for each in record["evidence"])
            entry = (doubts, -self.num_records, record)
            (heapq.heappush if len(self._kept) < self._most else heapq.heappushpop)(self._kept, entry)
            yield record

    def records(self) -> list[dict[str, Any]]:
        """Return the kept records in their original order."""
        return [record for _, _, record in sorted(self._kept, key=lambda entry: -entry[1])]


def write_report(path: Path, doubtful: MostDoubtful, texts: Mapping[str, str]) -> None:
    """Write a page of documents with marked values; `texts` by document name."""
    kept = doubtful.records()
    title = "Extraction"
    if len(kept) < doubtful.num_records:
        title = f"Extraction: the {len(kept)} most doubtful of {doubtful.num_records:,} documents"
    with replacing(path) as file:
        file.write(report(kept, texts, title=title).encode())
