"""The columns of an output: those of the source, those of the answer, and the error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from features.pipelines.rows.outputs.answer_columns import TEXT_COLUMN, THOUGHTS_COLUMN
from features.pipelines.rows.outputs.column_types import ColumnType, Kind
from features.pipelines.rows.outputs.tables import arrow_fields, several_types, size_of
from features.pipelines.rows.sources.files import Format
from jobs.errors import InputError
from tokenmill.packages import needed

ERROR_COLUMN = "error"
MAX_COLUMNS = 10_000
_GROUP_ROWS = 1024
"""Rows whose types are inferred at once; fewer if they exceed _GROUP_BYTES."""
_GROUP_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The columns of an answer and their names."""

    answer: Mapping[str, ColumnType] | None
    """By the schema's names; None for a text."""
    has_thoughts: bool = False
    """Whether the thoughts before an answer have a column too."""
    prefix: str = ""

    @property
    def typed(self) -> Mapping[str, ColumnType]:
        """Return every added column by its name, the error last."""
        text = ColumnType(kind=Kind.STRING, place="$")
        columns = {TEXT_COLUMN: text} if self.answer is None else self.answer
        beside = dict.fromkeys((*self._thoughts, ERROR_COLUMN), text)
        return {self.prefix + name: column for name, column in (*columns.items(), *beside.items())}

    def row(self, values: Mapping[str, Any], answer: Mapping[str, Any], error: str | None) -> dict[str, Any]:
        """Return a row of the output."""
        names = (*(self.answer or (TEXT_COLUMN,)), *self._thoughts)
        added = {self.prefix + name: answer.get(name) for name in names}
        return {**values, **added, self.prefix + ERROR_COLUMN: error}

    @property
    def _thoughts(self) -> tuple[str, ...]:
        return (THOUGHTS_COLUMN,) if self.has_thoughts else ()


def require_apart(columns: Iterable[str], shape: Shape) -> None:
    """Raise InputError if a column of the source has the name of an added one."""
    require_free(shape.answer or {}, has_thoughts=shape.has_thoughts)
    if both := [name for name in columns if name in shape.typed]:
        raise InputError(
            f"the source already has the column{'s' if len(both) > 1 else ''} {', '.join(both)}, which the answers "
            "would replace. Give the new columns a prefix, such as --prefix answer_, or rename the old.",
            param="prefix",
        )


def require_free(columns: Mapping[str, ColumnType], *, has_thoughts: bool) -> None:
    """Raise InputError if a property of a schema has the name of a column beside the answer's."""
    kept = {ERROR_COLUMN: "the error of a failed row"}
    if has_thoughts:
        kept[THOUGHTS_COLUMN] = "the thoughts"
    for name, purpose in kept.items():
        if name in columns:
            message = f"the schema has a property {name!r}, which is the column for {purpose}. Rename the property."
            raise InputError(message, param="schema")


def output_schema(source_schema: Any, columns: Sequence[str], shape: Shape) -> Any:
    """Return the pyarrow.Schema of an output. Columns of a source without types are texts."""
    arrow = needed("pyarrow", by="writing Parquet")
    own = source_schema if source_schema is not None else [arrow.field(name, arrow.string()) for name in columns]
    return arrow.schema([*own, *arrow_fields(shape.typed)])


class SeenColumns:
    """The column names of rows without a header, in order of appearance; with types if the output needs them."""

    def __init__(self, form: Format) -> None:
        self._names: dict[str, None] = {}
        self._needs_types = form is Format.PARQUET
        self._group: list[Mapping[str, Any]] = []
        self._group_bytes = 0
        self._schema: Any = None
        self.has_widened = False
        """Whether a column's type became wider, so that earlier values were not checked against it."""

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def add(self, values: Mapping[str, Any]) -> None:
        """Add a row. Raise InputError if its types do not fit a column."""
        if not values.keys() <= self._names.keys():
            self._names.update(dict.fromkeys(values))
            if len(self._names) > MAX_COLUMNS:
                raise InputError(f"the rows have more than {MAX_COLUMNS:,} different names. Put values under one name.")
        if self._needs_types:
            self._group.append(values)
            self._group_bytes += size_of(values)
            if len(self._group) >= _GROUP_ROWS or self._group_bytes >= _GROUP_BYTES:
                self._infer()

    def schema(self) -> Any:
        """Return the pyarrow.Schema that fits all rows; None if types are not needed."""
        if not self._needs_types:
            return None
        self._infer()
        arrow = needed("pyarrow", by="writing Parquet")
        if self._schema is None:
            return arrow.schema([])
        empty = [index for index, field in enumerate(self._schema) if arrow.types.is_null(field.type)]
        for index in empty:
            self._schema = self._schema.set(index, self._schema.field(index).with_type(arrow.string()))
        return self._schema

    def _infer(self) -> None:
        arrow = needed("pyarrow", by="writing Parquet")
        group, self._group, self._group_bytes = self._group, [], 0
        if not group:
            return
        fields = [arrow.field(name, self._type_of(name, group)) for name in self._names]
        known = [] if self._schema is None else [self._schema]
        parts = [*known, arrow.schema(fields)]
        try:
            self._schema = arrow.unify_schemas(parts, promote_options="permissive")
        except (arrow.ArrowException, TypeError) as error:
            raise several_types(str(error)) from None
        fields = [field for part in parts for field in part if not arrow.types.is_null(field.type)]
        self.has_widened |= any(field.type != self._schema.field(field.name).type for field in fields)

    def _type_of(self, name: str, group: Sequence[Mapping[str, Any]]) -> Any:
        arrow = needed("pyarrow", by="writing Parquet")
        try:
            return arrow.array([row.get(name) for row in group]).type
        except OverflowError:
            raise several_types(f"column {name!r} has an integer beyond 64 bits") from None
        except arrow.ArrowException as error:
            raise several_types(f"column {name!r}: {error}") from None
