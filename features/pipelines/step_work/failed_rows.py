"""Writes the rows of a step without an answer to a file, from which they can be sent through another prompt."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from features.pipelines.output_columns import ERROR_COLUMN
from features.pipelines.spec import Step
from features.pipelines.step_rows import StepRow
from features.pipelines.step_work.claimed_run import ClaimedRun
from jobs import files
from jobs.files import NewFile, Purpose
from jobs.settings import MIB
from jobs.storage import ObjectWriter
from jobs.tables import Tenant
from tokenmill.row_json import dumps

_SECONDS_A_DAY = 86_400


class FailedRows:
    """The file of a step: a line for each failed row, with its columns, and why in `error`, in place of such a column.

    It is kept as long as results are, but for at most 30 days. Its object is begun at the first row, and appears when
    the `with` block ends without an exception.
    """

    def __init__(self, run: ClaimedRun, step: Step) -> None:
        self._run = run
        self._storage = run.storage
        self._key = files.new_object_key(run.context.tenant_id)
        self._name = f"{run.context.run_id}_{step.name}_failed.jsonl"
        self._writer: ObjectWriter | None = None
        self._opened = ExitStack()
        self._block = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._opened:
            if error is not None:
                raise error
            self._flush()

    def add(self, row: StepRow, error: str) -> None:
        self._block += dumps({**row.values, ERROR_COLUMN: error}) + b"\n"
        if len(self._block) >= MIB:
            self._flush()

    @property
    def file(self) -> NewFile | None:
        """Return the file after the end of the block; None if no row failed."""
        if self._writer is None:
            return None
        return NewFile(
            object_key=self._key,
            filename=self._name,
            purpose=Purpose.USER_DATA,
            size_bytes=self._writer.size_bytes,
            expires_after_seconds=min(files.MAX_EXPIRY_SECONDS, _SECONDS_A_DAY * self._days_of_results()),
        )

    def _days_of_results(self) -> int:
        """Return for how many days the results of the run's tenant are kept."""
        with self._run.work.reading() as session:
            days = session.get_one(Tenant, self._run.context.tenant_id).retention_days
        return self._run.settings.retention_days if days is None else days

    def _flush(self) -> None:
        if not self._block:
            return
        if self._writer is None:
            self._writer = self._opened.enter_context(self._storage.writer(self._key))
        self._writer.write(bytes(self._block))
        self._block.clear()
