"""The columns of a step's output, and their types if it is Parquet.

Types are determined while a step's rows are read, so that rows that Parquet cannot hold fail before they cost anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from features.pipelines.rows.lines.table_shape import SeenColumns
from features.pipelines.rows.outputs.answer_columns import TEXT_COLUMN, THOUGHTS_COLUMN
from features.pipelines.rows.outputs.column_types import ColumnType, Kind, answer_columns
from features.pipelines.rows.outputs.kept_columns import nullable, restorers
from features.pipelines.rows.outputs.tables import arrow_fields, require_writable
from features.pipelines.rows.sources import files
from features.pipelines.spec import Definition, Format, Step
from tokenmill.packages import needed

ERROR_COLUMN = "error"


def added_columns(step: Step) -> Mapping[str, ColumnType]:
    """Return the columns that a step's answers add to its rows."""
    text = ColumnType(kind=Kind.STRING, place="$")
    columns = {TEXT_COLUMN: text} if step.response_schema is None else answer_columns(step.response_schema)
    return columns | ({THOUGHTS_COLUMN: text} if step.thoughts else {})


def comes_to_parquet(definition: Definition, step: Step) -> bool:
    """Tell whether this or a later step writes a step's rows as Parquet; groups have their own rows."""
    reached = {step.name}
    for each in definition.steps:
        if each.source.step in reached and each.source.group_by is None:
            reached.add(each.name)
    outputs = (each.output for each in definition.steps if each.name in reached)
    return any(output is not None and output.form is Format.PARQUET for output in outputs)


def require_packages(definition: Definition) -> None:
    """Raise InputError that names what to install if this process cannot write the formats of a run's outputs."""
    if any(step.output is not None and step.output.form is Format.PARQUET for step in definition.steps):
        needed("pyarrow.parquet", by="writing Parquet")


class RowTypes:
    """The types of a step's rows, known from its source or derived from the rows as they are read."""

    def __init__(self, known: Any | None = None) -> None:
        """`known` is a pyarrow.Schema."""
        self._known = known
        self._seen = SeenColumns(files.Format.PARQUET)

    def add(self, values: Mapping[str, Any]) -> None:
        """Add a row. Raise InputError if its types do not fit a column."""
        if self._known is None:
            self._seen.add(values)

    def schema(self, step: Step, rows: Iterable[Mapping[str, Any]]) -> Any:
        """Return the pyarrow.Schema of a step's rows, which are read again if their types became wider.

        Raise InputError if Parquet cannot hold the columns or one of the rows.
        """
        schema = nullable(self._seen.schema() if self._known is None else self._known)
        columns = OutputColumns(step, schema=put_out(schema, step))
        again = (columns.row(values, {}, None) for values in rows)
        require_writable(columns.schema, again if self._seen.has_widened else ())
        return schema


def with_answers(schema: Any, step: Step) -> Any:
    """Return the columns of a step's rows with those of its answers, which replace columns of the same name."""
    added = {each.name: each for each in arrow_fields(added_columns(step))}
    known = {each.name: each for each in schema}
    return needed("pyarrow", by="writing Parquet").schema((known | added).values())


def put_out(schema: Any, step: Step) -> Any:
    """Return the columns of an output from those of its rows, both as pyarrow.Schema."""
    arrow = needed("pyarrow", by="writing Parquet")
    kept = [each for each in with_answers(schema, step) if each.name != ERROR_COLUMN]
    return arrow.schema([*kept, arrow.field(ERROR_COLUMN, arrow.string())])


class OutputColumns:
    """Makes the rows of an output from those of its step and their answers."""

    def __init__(self, step: Step, *, names: Sequence[str] | None = None, schema: Any = None) -> None:
        """CSV needs the names, Parquet a pyarrow.Schema."""
        self.names = names
        self.schema = schema
        self._unanswered = dict.fromkeys(added_columns(step))
        self._restorers = {} if schema is None else restorers(schema)

    def row(self, values: Mapping[str, Any], answer: Mapping[str, Any], error: str | None) -> dict[str, Any]:
        """Return a row of the output; without an answer, the answer's columns are null."""
        whole = {**values, **self._unanswered, **answer, ERROR_COLUMN: error}
        for name, restorer in self._restorers.items():
            if whole.get(name) is not None:
                whole[name] = restorer(whole[name])
        return whole
