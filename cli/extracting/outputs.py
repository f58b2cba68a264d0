"""The files that an extraction leaves: a record a line, the fields as columns of a table, a page to look at."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from cli.disk.download import replacing
from cli.extracting.prepared import ParseCache
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.report.page import report
from features.documents.record_table import open_parquet, row_of, table_columns
from features.pipelines.rows.outputs.tables import TableWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where what was asked for goes."""

    records: Path
    table: Path | None = None
    report: Path | None = None

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.records, self.table, self.report) if path is not None]


def write_outputs(records: Iterator[dict[str, Any]], outputs: Outputs, *, schema: FieldSchema) -> None:
    """Write every record, and its fields to the table, each file put in its place when it is whole."""
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
    """Keeps of passing records those that a person should look at first: as many as a page can show."""

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
        """Return those kept, in the order in which they passed."""
        return [record for _, _, record in sorted(self._kept, key=lambda entry: -entry[1])]


def write_report(doubtful: MostDoubtful, path: Path, *, cache: ParseCache) -> None:
    """Write a page of documents with their values marked."""
    kept = doubtful.records()
    texts = {one["document"]: cache.load(one["sha256"]).text for one in kept if one["error"] is None}
    title = "Extraction"
    if len(kept) < doubtful.num_records:
        title = f"Extraction: the {len(kept)} most doubtful of {doubtful.num_records:,} documents"
    with replacing(path) as file:
        file.write(report(kept, texts, title=title).encode())
