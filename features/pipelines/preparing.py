"""Renders the rows of a step into two objects: the rows as read, and the lines of a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from features.pipelines.context import RunContext
from features.pipelines.external.store import Found
from features.pipelines.output_columns import RowTypes
from features.pipelines.requests import line_of
from features.pipelines.rows.lines.grouping import ROWS_COLUMN
from features.pipelines.rows.lines.requests import shown_to
from features.pipelines.rows.outputs.kept_columns import dumped
from features.pipelines.rows.templates.cpu_time import CpuTime
from features.pipelines.rows.templates.renderer import Rendered, Renderer, RowError
from features.pipelines.rows.templates.template import Template, parse
from features.pipelines.spec import Step
from features.pipelines.step_rows import StepRow, encode, read_rows
from features.pipelines.steps import Prepared
from jobs import files
from jobs.batches import made_inputs
from jobs.errors import InputError, TooLargeError
from jobs.files import NewFile, Purpose
from jobs.settings import MIB, Settings
from jobs.storage import ObjectWriter, Storage

_CHECKED_EVERY = 100  # rows between two checks of the claim
_WRITTEN_AT_ONCE = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A row of a step's source."""

    custom_id: str
    values: Mapping[str, Any]
    previous: Mapping[str, Any] | None = None
    """The value of `previous` in templates; None for rows of files or groups."""
    rows: Sequence[Mapping[str, Any]] | None = None
    """The value of `rows` in templates; None if it is not a group."""
    error: str | None = None
    """Why it is not rendered."""

    def shown(self, template: Template, context: RunContext) -> Mapping[str, Any]:
        """Return the variables of a template for this row and its run."""
        variables = {**shown_to(template, self.values), "run": context.shown()}
        added = {"previous": self.previous, ROWS_COLUMN: self.rows}
        return variables | {name: value for name, value in added.items() if value is not None}


def row_id(number: int) -> str:
    """Return the custom_id of a first step's row, from 1."""
    return f"row-{number:09d}"


class Preparation:
    """One attempt to prepare the rows of one step."""

    def __init__(
        self,
        storage: Storage,
        context: RunContext,
        step: Step,
        *,
        settings: Settings,
        moves: Callable[[], None],
        cpu: CpuTime,
        types: RowTypes | None = None,
    ) -> None:
        """`moves` is called periodically and may raise; `types` is given if the columns' types are needed.

        `cpu` is shared by all steps of the run.
        """
        self._storage = storage
        self._context = context
        self._step = step
        self._template = parse(step.prompt)
        self._settings = settings
        self._moves = moves
        self._cpu = cpu
        self._types = types
        self._num_rows = self._num_failed = self._num_line_bytes = 0
        self._waiting: deque[SourceRow] = deque()

    def write(self, rows: Iterable[SourceRow], *, taken: Sequence[Found] = ()) -> Prepared:
        """Render rows and write both objects; after an error neither exists, or no row names it."""
        rows_key, lines_key = (files.new_object_key(self._context.tenant_id) for _ in range(2))
        name = f"{self._context.run_id}_{self._step.name}"
        used_before = self._cpu.used_seconds
        with (
            self._storage.writer(rows_key) as writer,
            Renderer(self._template, cpu=self._cpu, waits=self._moves) as renderer,
        ):
            kept = _Buffered(writer, self._require_room)
            contexts = (self._context_of(row) for row in rows)
            outcomes = renderer.render(contexts)
            lines = made_inputs.write_input(
                self._storage,
                lines_key,
                self._lines(outcomes, kept),
                filename=f"{name}.jsonl",
                settings=self._settings,
            )
            kept.flush()
        row_schema = self._row_schema(rows_key, lines_key)
        is_empty = self._num_rows == self._num_failed
        if is_empty:
            self._storage.delete(lines_key)
        kept_file = NewFile(
            object_key=rows_key,
            filename=f"{name}_rows.jsonl",
            purpose=Purpose.USER_DATA,
            size_bytes=writer.size_bytes,
            expires_after_seconds=files.MAX_EXPIRY_SECONDS,
        )
        return Prepared(
            rows=kept_file,
            lines=None if is_empty else lines,
            num_rows=self._num_rows,
            num_failed=self._num_failed,
            row_schema=row_schema,
            cpu_seconds=self._cpu.used_seconds - used_before,
            taken=taken,
        )

    def _row_schema(self, rows_key: str, lines_key: str) -> bytes | None:
        if self._types is None:
            return None
        try:
            return dumped(self._types.schema(self._step, (row.values for row in read_rows(self._storage, rows_key))))
        except InputError:
            for key in (rows_key, lines_key):
                self._storage.delete(key)
            raise

    def _context_of(self, row: SourceRow) -> Mapping[str, Any] | RowError:
        self._waiting.append(row)
        if row.error is not None:
            return RowError(message=row.error)
        return row.shown(self._template, self._context)

    def _lines(self, outcomes: Iterator[Rendered | RowError], kept: _Buffered) -> Iterator[bytes]:
        for outcome in outcomes:
            row = self._waiting.popleft()
            self._count()
            error = outcome.message if isinstance(outcome, RowError) else None
            try:
                encoded = encode(StepRow(custom_id=row.custom_id, values=row.values, error=error))
            except TypeError as reason:  # such as a row that is nested too deeply for JSON
                error = f"the row cannot be kept as JSON, so the output has none of its columns: {reason}"
                encoded = encode(StepRow(custom_id=row.custom_id, values={}, error=error))
            else:
                if self._types is not None:
                    self._types.add(row.values)
            kept.write(encoded)
            if error is not None or isinstance(outcome, RowError):
                self._num_failed += 1
            else:
                line = line_of(self._step, row.custom_id, messages=outcome.messages)
                self._num_line_bytes += len(line) + 1
                self._require_room(self._num_line_bytes)
                yield line

    def _require_room(self, num_bytes: int) -> None:
        """Raise TooLargeError before an object exceeds the limit of a file, even if the tenant's storage has room."""
        if num_bytes > self._settings.max_file_bytes:
            raise TooLargeError(
                f"The rows of step {self._step.name!r} or their prompts have more than "
                f"{self._settings.max_file_bytes:,} bytes, which is the limit of a file. Take fewer files, or run more "
                "often."
            )

    def _count(self) -> None:
        self._num_rows += 1
        if self._num_rows % _CHECKED_EVERY == 0:
            self._moves()
        if self._num_rows > self._settings.max_batch_lines:
            raise TooLargeError(
                f"Step {self._step.name!r} has more than {self._settings.max_batch_lines:,} rows, which is the limit "
                "of a batch. Take fewer files, or run more often."
            )


class _Buffered:
    """Writes lines in blocks."""

    def __init__(self, writer: ObjectWriter, require_room: Callable[[int], None]) -> None:
        self._writer = writer
        self._require_room = require_room
        self._block = bytearray()

    def write(self, line: bytes) -> None:
        self._block += line + b"\n"
        if len(self._block) >= _WRITTEN_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        self._require_room(self._writer.size_bytes + len(self._block))
        self._writer.write(bytes(self._block))
        self._block.clear()
