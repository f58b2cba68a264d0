"""Publishes a step's output into a tenant's store: written to a temporary folder, moved, and named by `_SUCCESS`.

Each part can be repeated after a worker was killed: the same rows give the same files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import orjson

from features.pipelines import patterns
from features.pipelines.context import RunContext
from features.pipelines.external.store import BESIDE, ExternalStore
from features.pipelines.output_columns import OutputColumns
from features.pipelines.rows.outputs.tables import open_table
from features.pipelines.rows.sources.files import Format
from features.pipelines.spec import Step
from jobs.errors import ServiceError

SUCCESS = "_SUCCESS"
_MAX_SUCCESS_BYTES = 64 << 20
_COPIED_AT_ONCE = 1 << 20
_CHECKED_EVERY = 100  # rows


class Publication:
    """The output of one step of one run."""

    def __init__(
        self,
        store: ExternalStore,
        context: RunContext,
        step: Step,
        *,
        moves: Callable[[], None],
        confirm: Callable[[], None],
    ) -> None:
        """`moves` is called periodically, `confirm` before visible changes; both raise once the claim is lost."""
        assert step.output is not None, "a step without an output publishes nothing"
        self._store = store
        self._context = context
        self._step = step
        self._output = step.output
        self._moves = moves
        self._confirm = confirm
        self._pattern = context.key(step.output.keys, step=step)
        self._folder = self._pattern.rpartition("/")[0]
        self._beside = f"{self._folder}/{BESIDE}/{context.run_id}"

    def publish(self, rows: Iterable[Mapping[str, Any]], columns: OutputColumns) -> list[dict[str, Any]]:
        """Write the rows and `_SUCCESS`; return the files that hold the rows."""
        published = self._named_by_success()
        if published is not None:
            self._store.clear(self._beside)  # left by a worker that was killed
            return published
        parts = _parts(rows, self._output.rows_a_file)
        files = [self._write(part, number, columns) for number, part in enumerate(parts)]
        self._confirm()
        # Readers must not take a mixture of old and new files for a complete output.
        self._store.delete(f"{self._folder}/{SUCCESS}")
        for file in files:
            self._confirm()
            if not self._store.move(self._beside_of(file["key"]), file["key"]):
                raise ServiceError(f"{file['key']} was gone before it was published; it is written again")
        self._delete_others({file["key"] for file in files})
        self._confirm()
        self._say_success(files)
        self._store.clear(self._beside)
        return files

    def _write(self, part: Iterable[Mapping[str, Any]], number: int, columns: OutputColumns) -> dict[str, Any]:
        key = self._context.key(self._output.keys, step=self._step, number=number)
        num_rows = 0
        # Through a temporary file, as writing a table needs to seek.
        with _spool() as spool:
            form = Format(self._output.form)
            with open_table(spool, form, columns=columns.names, schema=columns.schema) as table:
                for row in part:
                    table.write(row)
                    num_rows += 1
                    if num_rows % _CHECKED_EVERY == 0:
                        self._moves()
            size = spool.tell()
            spool.seek(0)
            with self._store.create(self._beside_of(key)) as target:
                while piece := spool.read(_COPIED_AT_ONCE):
                    target.write(piece)
                    self._moves()
        return {"key": key, "rows": num_rows, "bytes": size}

    def _beside_of(self, key: str) -> str:
        return f"{self._beside}/{key.rpartition('/')[2]}"

    def _named_by_success(self) -> list[dict[str, Any]] | None:
        content = self._store.read_small(f"{self._folder}/{SUCCESS}", _MAX_SUCCESS_BYTES)
        try:
            success = orjson.loads(content or b"null")
        except orjson.JSONDecodeError:
            return None  # written by another program
        if not isinstance(success, dict) or (success.get("run_id"), success.get("step")) != (
            self._context.run_id,
            self._step.name,
        ):
            return None
        return list(success["files"])

    def _say_success(self, files: list[dict[str, Any]]) -> None:
        success = {
            "run_id": self._context.run_id,
            "pipeline": self._context.pipeline,
            "step": self._step.name,
            "scheduled_for": self._context.scheduled_for.isoformat(),
            "files": files,
        }
        with self._store.create(f"{self._folder}/{SUCCESS}") as target:
            target.write(orjson.dumps(success) + b"\n")

    def _delete_others(self, keys: set[str]) -> None:
        """Delete files of an earlier run for the same time that this one has not overwritten."""
        existing = [each.key for each in self._store.list(f"{self._folder}/")]
        for key in existing:
            if key not in keys and patterns.matches(self._pattern, key):
                self._store.delete(key)


@contextmanager
def _spool() -> Iterator[BinaryIO]:
    """Open a temporary file. Raise ServiceError if the disk is full."""
    try:
        with tempfile.TemporaryFile() as file:
            yield cast(BinaryIO, file)
    except OSError as error:
        raise ServiceError(
            "the control worker has no room for the output in its folder for temporary files: "
            f"{error.strerror or error}"
        ) from error


def _parts(rows: Iterable[Mapping[str, Any]], size: int) -> Iterator[Iterator[Mapping[str, Any]]]:
    """Divide rows into parts; each must be read to its end before the next one is requested."""
    iterator = iter(rows)

    def part(first: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        yield first
        for _, row in zip(range(size - 1), iterator, strict=False):
            yield row

    for first in iterator:
        yield part(first)
