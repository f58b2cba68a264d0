"""The rows of a job as lines of a batch, and the note of their rendering, with which the same command resumes.

Lines are not stored here: they are rendered twice, first to be checked, then while they are uploaded.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from cli.disk.download import replacing
from cli.mapping.job import MapJob
from cli.submitting.command_folder import CommandFolder
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
    sha256: str
    """Of the lines."""
    num_rows: int
    num_unrendered: int
    columns: list[str]
    """Columns of the source."""
    schema: str | None
    """The serialized pyarrow.Schema of the output, as base64; None if the output has no types."""


@dataclass(slots=True)
class _Pass:
    """Renders the rows of a job once, and counts them."""

    unrendered: BinaryIO
    """Gets the rows that became no line."""
    num_rows: int = 0
    num_unrendered: int = 0
    shown: list[RequestLine | UnrenderedRow] = field(default_factory=list)
    first_unrendered: UnrenderedRow | None = None
    digest: Any = field(default_factory=hashlib.sha256)

    def lines(self, job: MapJob) -> Iterator[bytes]:
        for one in request_lines(job.source, job.template, job.ask):
            self.num_rows += 1
            if len(self.shown) < MAX_SHOWN:
                self.shown.append(one)
            if isinstance(one, RequestLine):
                self.digest.update(one.line)
                yield one.line
            else:
                self.num_unrendered += 1
                self.first_unrendered = self.first_unrendered or one
                self.unrendered.write(orjson.dumps(asdict(one)) + b"\n")


Consume = Callable[[Iterator[bytes]], object]
"""What reads the rendered lines; it may leave some."""


def render(job: MapJob, unrendered: BinaryIO, *, consume: Consume) -> tuple[Rendered, _Pass]:
    """Render all rows and pass their lines to `consume`.

    Raises InputError if the source cannot be read, or no row can be rendered.
    """
    identity = job.source.identity()
    seen, rendering = SeenColumns(job.form), _Pass(unrendered)
    with closing(rendering.lines(_noting(job, seen))) as lines:  # type: ignore[type-var]  # a generator
        first = next(lines, None)
        if first is None:
            raise _nothing_to_run(job, rendering)
        consume(chain([first], lines))
        deque(lines, maxlen=0)
    columns = list(job.source.columns or seen.names)
    require_apart(columns, job.shape)
    rendered = Rendered(
        identity=identity,
        sha256=rendering.digest.hexdigest(),
        num_rows=rendering.num_rows,
        num_unrendered=rendering.num_unrendered,
        columns=columns,
        schema=_output_schema(job, seen, columns),
    )
    return rendered, rendering


@dataclass(frozen=True, slots=True, kw_only=True)
class MapFolder:
    """The notes of a job, in the folder of its command."""

    command: CommandFolder

    @property
    def unrendered(self) -> Path:
        return self.command.root / "unrendered.jsonl"

    @property
    def note(self) -> Path:
        return self.command.root / "rendered.json"

    @property
    def is_rendered(self) -> bool:
        """Return whether an earlier start has rendered and checked the rows."""
        return self.note.exists()

    def render(self, job: MapJob, *, check: Consume) -> Rendered:
        """Render all rows and let `check` read their lines, unless an earlier start did. Raises as `render`."""
        if self.is_rendered:
            return Rendered(**orjson.loads(self.note.read_bytes()))
        with replacing(self.unrendered) as unrendered:
            rendered, _ = render(job, unrendered, consume=check)
        with replacing(self.note) as file:
            file.write(orjson.dumps(asdict(rendered)))
        return rendered

    def rows(self, job: MapJob, rendered: Rendered, results: Sequence[Iterable[bytes]]) -> Iterator[dict[str, Any]]:
        """Yield the rows of the output. Raises InputError if the source has changed."""
        if job.source.identity() != rendered.identity:
            raise _changed(job)
        unrendered = (UnrenderedRow(**orjson.loads(line)) for line in lines_of(self.unrendered))
        return joined_rows(job.source, job.shape, unrendered=unrendered, results=results)

    def forget(self) -> None:
        """Delete the notes of the rendering once the output is written."""
        for path in (self.unrendered, self.note):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete everything of the job."""
        shutil.rmtree(self.command.root, ignore_errors=True)


def sent_lines(job: MapJob, rendered: Rendered) -> Iterator[bytes]:
    """Yield the lines of all rows again. Raises InputError at the end if they are not those that were checked."""
    digest = hashlib.sha256()
    for one in request_lines(job.source, job.template, job.ask):
        if isinstance(one, RequestLine):
            digest.update(one.line)
            yield one.line
    if digest.hexdigest() != rendered.sha256:
        raise _changed(job)


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


def _nothing_to_run(job: MapJob, rendering: _Pass) -> InputError:
    first = rendering.first_unrendered
    if first is None:
        return InputError(f"{job.source.description} has no rows.")
    misfit = "the only row of {} does not fit"
    if rendering.num_rows > 1:
        misfit = f"none of the {rendering.num_rows:,} rows of {{}} fits"
    return InputError(f"{misfit.format(job.source.description)} the prompt. Row {first.index}: {first.error}")


def _changed(job: MapJob) -> InputError:
    return InputError(f"{job.source.description} has changed since its rows were read. Run the same command again.")


def lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file
