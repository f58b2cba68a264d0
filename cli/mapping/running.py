"""Runs a job at a service, from where an earlier start stopped, and writes its table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.disk.download import replacing
from cli.mapping.folder import MapFolder, Rendered, arrow_schema, sent_lines
from cli.mapping.job import MapJob
from cli.service.service import Target, service_at
from cli.submitting.command_folder import CommandFolder
from cli.submitting.results import opened_results
from cli.submitting.stored import delete_noted, delete_stored, ids_stored
from cli.submitting.submission import Lines, Submission
from cli.submitting.uploading import upload_stream
from features.pipelines.rows.lines.requests import ENDPOINT
from features.pipelines.rows.lines.table_shape import ERROR_COLUMN
from features.pipelines.rows.outputs.tables import open_table
from jobs.counted import counted

if TYPE_CHECKING:
    from cli.service.service import Service

_CODE = re.compile(r"\((\w+)\)$")


@dataclass(slots=True)
class Tally:
    """Counts over rows as they pass."""

    num_answered: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """Failed rows by the code at the end of their error."""

    def passing(self, rows: Iterator[dict[str, Any]], *, error_column: str) -> Iterator[dict[str, Any]]:
        for row in rows:
            error = row[error_column]
            if error is None:
                self.num_answered += 1
            else:
                match = _CODE.search(error)
                self.codes[match[1] if match else "unrendered"] += 1
            yield row


def folder_of(job: MapJob, target: Target, *, base: Path, output: str) -> MapFolder:
    """Return the folder of a job at this target with this output."""
    return MapFolder(command=CommandFolder.below(base, job.identity(target.name, output)))


def written_before(mapped: MapFolder, output: Path) -> Tally | None:
    """Return the tally of an earlier start that has written the output, if that is unchanged."""
    if not mapped.command.has_written([output]):
        return None
    state = mapped.command.read()
    return Tally(num_answered=state.num_answered, codes=Counter(state.failed or {}))


def check_schema(job: MapJob, target: Target) -> None:
    """Raise InputError if the target cannot enforce the schema of the answers."""
    if job.ask.schema is not None:
        target.check_schema(job.ask.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A job whose every line has a result, while the service is open."""

    job: MapJob
    mapped: MapFolder
    rendered: Rendered
    service: Service
    stored: list[str]
    """Ids of what the service stores for it."""
    rows: Iterator[dict[str, Any]]
    """The rows of the output, to be read once."""


@contextmanager
def computed(job: MapJob, target: Target, mapped: MapFolder, *, say: Callable[[str], None]) -> Iterator[Computed]:
    """Complete the results of a job, from where an earlier start stopped."""
    rendered = mapped.render(
        job,
        check=lambda lines: target.require_valid_lines(lines, path=mapped.command.root / "lines", endpoint=ENDPOINT),
    )
    if rendered.num_unrendered:
        say(
            f"no prompt for {rendered.num_unrendered:,} of {counted(rendered.num_rows, 'row')}; "
            f"see the column {ERROR_COLUMN}"
        )
    lines = Lines(
        name="rows",
        sha256=rendered.sha256,
        endpoint=ENDPOINT,
        upload=lambda service, name: upload_stream(service, sent_lines(job, rendered), name=name),
    )
    with service_at(target, say=say) as service:
        batches = Submission(service=service, folder=mapped.command, lines=lines, say=say).run()
        with opened_results(service.client, batches) as streams:
            yield Computed(
                job=job,
                mapped=mapped,
                rendered=rendered,
                service=service,
                stored=ids_stored(service.client, mapped.command.key, batches),
                rows=mapped.rows(job, rendered, [*streams.answers, *streams.errors]),
            )


def write_output(work: Computed, output: Path, *, keep: bool, say: Callable[[str], None]) -> Tally:
    """Write the rows with their answers to `output`, replaced once complete, and delete the rest unless `keep`."""
    tally, job, mapped = Tally(), work.job, work.mapped
    columns = [*work.rendered.columns, *job.shape.typed]
    with (
        replacing(output) as file,
        open_table(file, job.form, columns=columns, schema=arrow_schema(work.rendered)) as table,
    ):
        for row in tally.passing(work.rows, error_column=job.shape.prefix + ERROR_COLUMN):
            table.write(row)
    if keep:
        say(f"kept: {', '.join(work.stored)}")
    mapped.command.note_outputs(
        [output],
        stored=[] if keep else work.stored,
        num_answered=tally.num_answered,
        failed=dict(tally.codes),
    )
    mapped.forget()
    delete_noted(work.service.client, mapped.command, say=say)
    return tally


def delete_left(mapped: MapFolder, target: Target, *, say: Callable[[str], None]) -> None:
    """Delete what a start that was killed after it had written its output has left at the service."""
    if mapped.command.read().stored:
        with service_at(target, say=say) as service:
            delete_noted(service.client, mapped.command, say=say)


def delete_taken(work: Computed, *, say: Callable[[str], None]) -> None:
    """Delete all of a job whose rows the caller has."""
    delete_stored(work.service.client, work.stored, say=say)
    work.mapped.remove()
