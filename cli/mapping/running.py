"""Runs a map job: render, run, join; each step once, however often the command is started."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cli.disk.download import replacing
from cli.mapping.folder import MapFolder, Rendered, arrow_schema
from cli.mapping.job import MapJob
from cli.places.run_folder import RunFolder, sha256_of
from cli.places.session import Place, session_at
from features.pipelines.rows.lines.table_shape import ERROR_COLUMN
from features.pipelines.rows.outputs.tables import open_table
from jobs.counted import counted

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


def folder_of(job: MapJob, place: Place, *, base: Path, output: str) -> MapFolder:
    """Return the folder of a job at this place with this output."""
    return MapFolder(run=RunFolder.below(base, job.identity(place.name, output)))


def written_before(folder: MapFolder, output: Path) -> Tally | None:
    """Return the tally of an earlier start that has written the output, if that is unchanged."""
    if not folder.run.has_written([output]):
        return None
    state = folder.run.read()
    return Tally(num_answered=state.num_answered, codes=Counter(state.failed or {}))


def check_schema(job: MapJob, place: Place) -> None:
    """Raise InputError if the place cannot enforce the schema of the answers."""
    if job.ask.schema is not None:
        place.check_schema(job.ask.schema)


def compute(job: MapJob, place: Place, folder: MapFolder, *, say: Callable[[str], None]) -> Rendered:
    """Complete the results of a job in its folder, from where an earlier start stopped."""
    rendered = folder.render(job)
    if rendered.num_unrendered:
        say(
            f"no prompt for {rendered.num_unrendered:,} of {counted(rendered.num_rows, 'row')}; "
            f"see the column {ERROR_COLUMN}"
        )
    with session_at(place, folder.run, say=say) as session:
        session.run(folder.stage)
    return rendered


def write_output(job: MapJob, folder: MapFolder, rendered: Rendered, output: Path) -> Tally:
    """Write the rows with their answers to `output`, replaced once complete, and delete the rest."""
    tally = Tally()
    shape = job.shape
    columns = [*rendered.columns, *shape.typed]
    with (
        replacing(output) as file,
        open_table(file, job.form, columns=columns, schema=arrow_schema(rendered)) as table,
    ):
        for row in tally.passing(folder.rows(job, rendered), error_column=shape.prefix + ERROR_COLUMN):
            table.write(row)
    digests = {str(output.absolute()): sha256_of(output)}
    ended = replace(folder.run.read(), outputs=digests, num_answered=tally.num_answered, failed=dict(tally.codes))
    folder.run.write(ended)
    folder.forget()
    return tally
