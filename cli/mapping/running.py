"""One job from its source to its output: rendered, run, joined, each step once however often it is started."""

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
from cli.mapping.places import Place
from cli.run_state import RunFolder, outputs_are_intact, sha256_of
from pipelines.lines.table_shape import ERROR_COLUMN
from pipelines.outputs.tables import open_table

_CODE = re.compile(r"\((\w+)\)$")


@dataclass(slots=True)
class Tally:
    """What became of rows, counted as they pass."""

    num_answered: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """How many failed, by the code at the end of their error."""

    def passing(self, rows: Iterator[dict[str, Any]], *, error_column: str) -> Iterator[dict[str, Any]]:
        for row in rows:
            error = row[error_column]
            if error is None:
                self.num_answered += 1
            else:
                found = _CODE.search(error)
                self.codes[found[1] if found else "unrendered"] += 1
            yield row


def folder_of(job: MapJob, place: Place, *, base: Path, output: str) -> MapFolder:
    """Return the folder of the job whose results of this place go to this output."""
    key = job.identity(place.name, output)
    return MapFolder(run=RunFolder(key=key, root=base.expanduser().absolute() / "runs" / key))


def is_done(folder: MapFolder, output: Path) -> bool:
    """Tell whether an earlier start has written the output, and it is as it was written."""
    state = folder.run.read()
    return str(output.absolute()) in (state.outputs or {}) and outputs_are_intact(state)


def compute(job: MapJob, place: Place, folder: MapFolder, *, say: Callable[[str], None]) -> Rendered:
    """Bring the results of a job into its folder, however far an earlier start came."""
    if job.ask.schema is not None:
        place.check_schema(job.ask.schema)
    rendered = folder.render(job)
    if rendered.num_unrendered:
        say(f"{rendered.num_unrendered:,} of {rendered.num_rows:,} rows do not fit the prompt; their error says why")
    place.run(folder)
    return rendered


def write_output(job: MapJob, folder: MapFolder, rendered: Rendered, output: Path) -> Tally:
    """Write the rows with their answers beside `output`, put it in its place, and forget the rest."""
    tally = Tally()
    shape = job.shape
    columns = [*rendered.columns, *shape.typed]
    with (
        replacing(output) as file,
        open_table(file, job.form, columns=columns, schema=arrow_schema(rendered)) as table,
    ):
        for row in tally.passing(folder.rows(job, rendered), error_column=shape.prefix + ERROR_COLUMN):
            table.write(row)
    noted = {str(output.absolute()): sha256_of(output)}
    folder.run.write(replace(folder.run.read(), outputs=noted))
    folder.forget()
    return tally
