"""The rendered lines and the results of a job on disk, from which the same command resumes."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from cli.disk.download import replacing
from cli.mapping.job import MapJob
from cli.places.run_folder import RunFolder
from cli.places.stage import Stage
from features.pipelines.rows.lines.joining import joined_rows
from features.pipelines.rows.lines.requests import RequestLine, UnrenderedRow, request_lines
from features.pipelines.rows.lines.table_shape import SeenColumns, output_schema, require_apart
from features.pipelines.rows.outputs.kept_columns import dumped, loaded
from features.pipelines.rows.outputs.tables import require_writable
from features.pipelines.rows.sources.files import Format
from features.pipelines.rows.sources.source import Row
from jobs.errors import InputError

MAX_SHOWN = 3
"""Number of rows that a dry run shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The outcome of rendering a source's rows, stored once all are rendered."""

    identity: str
    """Identity of the source when it was read."""
    num_rows: int
    num_unrendered: int
    columns: list[str]
    """Columns of the source."""
    schema: str | None
    """The serialized pyarrow.Schema of the output, as base64; None if the output has no types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapFolder:
    """The files of a job, in the folder of its run."""

    run: RunFolder

    @property
    def stage(self) -> Stage:
        return Stage.within(self.run)

    @property
    def unrendered(self) -> Path:
        return self.run.root / "unrendered.jsonl"

    @property
    def note(self) -> Path:
        return self.run.root / "rendered.json"

    def render(self, job: MapJob, *, shown: list[RequestLine | UnrenderedRow] | None = None) -> Rendered:
        """Write the lines of all rows, unless an earlier start did. The first ones are added to `shown`.

        Raises InputError if the source cannot be read, or no row can be rendered.
        """
        if self.note.exists():
            return Rendered(**orjson.loads(self.note.read_bytes()))
        self.run.root.mkdir(parents=True, exist_ok=True)
        identity = job.source.identity()
        seen = SeenColumns(job.form)
        num_rows, failed = self._write_lines(_noting(job, seen), shown if shown is not None else [])
        if num_rows == failed:
            raise _nothing_to_run(job, num_rows, self.unrendered)
        columns = list(job.source.columns or seen.names)
        require_apart(columns, job.shape)
        rendered = Rendered(
            identity=identity,
            num_rows=num_rows,
            num_unrendered=failed,
            columns=columns,
            schema=_output_schema(job, seen, columns),
        )
        with replacing(self.note) as file:
            file.write(orjson.dumps(asdict(rendered)))
        return rendered

    def _write_lines(self, job: MapJob, shown: list[RequestLine | UnrenderedRow]) -> tuple[int, int]:
        """Return the number of rows, and of rows that could not be rendered."""
        num_rows = failed = 0
        with replacing(self.stage.lines) as lines, replacing(self.unrendered) as unrendered:
            for one in request_lines(job.source, job.template, job.ask):
                num_rows += 1
                if len(shown) < MAX_SHOWN:
                    shown.append(one)
                if isinstance(one, RequestLine):
                    lines.write(one.line)
                else:
                    failed += 1
                    unrendered.write(orjson.dumps(asdict(one)) + b"\n")
        return num_rows, failed

    def rows(self, job: MapJob, rendered: Rendered) -> Iterator[dict[str, Any]]:
        """Yield the rows of the output. Raises InputError if the source has changed."""
        if job.source.identity() != rendered.identity:
            raise InputError(
                f"{job.source.description} has changed since its rows were read. Run the same command again."
            )
        results = [lines_of(path) for path in self.stage.results.paths]
        unrendered = (UnrenderedRow(**orjson.loads(line)) for line in lines_of(self.unrendered))
        return joined_rows(job.source, job.shape, unrendered=unrendered, results=results)

    def forget(self) -> None:
        """Free the disk once the output is written."""
        self.stage.forget()
        for path in (self.unrendered, self.note):
            path.unlink(missing_ok=True)
        self.run.forget_stack()

    def remove(self) -> None:
        """Delete everything of the job."""
        shutil.rmtree(self.run.root, ignore_errors=True)


def arrow_schema(rendered: Rendered) -> Any:
    """Return the pyarrow.Schema of the output; None if it has no types."""
    if rendered.schema is None:
        return None
    return loaded(base64.b64decode(rendered.schema))


def _output_schema(job: MapJob, seen: SeenColumns, columns: list[str]) -> str | None:
    if job.form is not Format.PARQUET:
        return None
    own = seen.schema() if job.source.columns is None else job.source.schema
    schema = output_schema(own, columns, job.shape)
    if job.source.columns is None:
        require_writable(schema, (row.values for row in job.source.read()) if seen.has_widened else ())
    return base64.b64encode(dumped(schema)).decode()


def _noting(job: MapJob, seen: SeenColumns) -> MapJob:
    """Collect the columns of a source without a header as its rows pass."""
    if job.source.columns is not None:
        return job

    def read() -> Iterator[Row]:
        for row in job.source.read():
            seen.add(row.values)
            yield row

    return replace(job, source=replace(job.source, read=read))


def _nothing_to_run(job: MapJob, num_rows: int, unrendered: Path) -> InputError:
    if num_rows == 0:
        return InputError(f"{job.source.description} has no rows.")
    first = orjson.loads(next(lines_of(unrendered)))
    misfit = "the only row of {} does not fit" if num_rows == 1 else f"none of the {num_rows:,} rows of {{}} fits"
    return InputError(f"{misfit.format(job.source.description)} the prompt. Row {first['index']}: {first['error']}")


def lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file
