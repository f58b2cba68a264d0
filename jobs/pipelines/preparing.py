"""The rows of a step through its prompt, as two objects: the rows as they were read, and the lines of a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs import files
from jobs.batches import made_inputs
from jobs.errors import TooLargeError
from jobs.files import NewFile, Purpose
from jobs.pipelines.context import RunContext
from jobs.pipelines.external import Found
from jobs.pipelines.requests import line_of
from jobs.pipelines.spec import Step
from jobs.pipelines.step_rows import StepRow, encode
from jobs.pipelines.steps import Prepared
from jobs.settings import MIB, Settings
from jobs.storage import ObjectWriter, Storage
from pipelines.templates.renderer import Rendered, Renderer, RowError
from pipelines.templates.template import check

_CHECKED_EVERY = 100  # rows: a claim that is over ends the work
_WRITTEN_AT_ONCE = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A row as a step gets it."""

    custom_id: str
    values: Mapping[str, Any]
    previous: Mapping[str, Any] | None = None
    """What a template sees as `previous`; None: this is a first step."""


class Preparation:
    """One go at the rows of one step."""

    def __init__(
        self, storage: Storage, context: RunContext, step: Step, *, settings: Settings, moves: Callable[[], None]
    ) -> None:
        """`moves` is called now and then, and may raise."""
        self._storage = storage
        self._context = context
        self._step = step
        self._settings = settings
        self._moves = moves
        self._num_rows = self._num_failed = self._num_line_bytes = 0
        self._waiting: deque[SourceRow] = deque()

    def write(self, rows: Iterable[SourceRow], *, taken: Sequence[Found] = ()) -> Prepared:
        """Render rows and write both objects; where anything raises neither appears, or no row names it."""
        rows_key, lines_key = (files.new_object_key(self._context.tenant_id) for _ in range(2))
        name = f"{self._context.run_id}_{self._step.name}"
        with self._storage.writer(rows_key) as writer, Renderer(check(self._step.prompt)) as renderer:
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
            taken=taken,
        )

    def _context_of(self, row: SourceRow) -> Mapping[str, Any]:
        self._waiting.append(row)
        shown = {**row.values, "row": dict(row.values), "run": self._context.shown()}
        return shown if row.previous is None else {**shown, "previous": row.previous}

    def _lines(self, outcomes: Iterator[Rendered | RowError], kept: _Buffered) -> Iterator[bytes]:
        for outcome in outcomes:
            row = self._waiting.popleft()
            self._count()
            error = outcome.message if isinstance(outcome, RowError) else None
            try:
                encoded = encode(StepRow(custom_id=row.custom_id, values=row.values, error=error))
            except TypeError as unkept:  # as of a row that is nested deeper than JSON is written
                error = f"the row cannot be kept as JSON, so the output has none of its columns: {unkept}"
                encoded = encode(StepRow(custom_id=row.custom_id, values={}, error=error))
            kept.write(encoded)
            if error is not None or isinstance(outcome, RowError):
                self._num_failed += 1
            else:
                line = line_of(self._step, row.custom_id, messages=outcome.messages)
                self._num_line_bytes += len(line) + 1
                self._require_room(self._num_line_bytes)
                yield line

    def _require_room(self, num_bytes: int) -> None:
        """Raise TooLargeError before more is written than any file may have, whatever its tenant may keep."""
        if num_bytes > self._settings.max_file_bytes:
            raise TooLargeError(
                f"The rows of step {self._step.name!r} or their prompts have more than "
                f"{self._settings.max_file_bytes:,} bytes, which is as many as a file may have. Take fewer files, or "
                "run more often."
            )

    def _count(self) -> None:
        self._num_rows += 1
        if self._num_rows % _CHECKED_EVERY == 0:
            self._moves()
        if self._num_rows > self._settings.max_batch_lines:
            raise TooLargeError(
                f"Step {self._step.name!r} has more than {self._settings.max_batch_lines:,} rows, which is as many as "
                "a batch may have. Take fewer files, or run more often."
            )


class _Buffered:
    """Lines, written some at a time."""

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
