"""Batches whose input is written here and not uploaded: the object first, then file and batch in one transaction.

What is in it, the caller decides. Sent again such a create returns the batch made before, and its object is needed by
nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from jobs import files
from jobs.accounts.limits import limits_of
from jobs.batches import lifecycle
from jobs.batches.submission import CreateBatch
from jobs.files import MAX_EXPIRY_SECONDS, NewFile, Purpose
from jobs.lines.input_estimate import InputEstimator
from jobs.settings import MIB, Settings
from jobs.storage import ObjectWriter, Storage
from jobs.tables import Batch, Tenant

_WRITTEN_AT_ONCE = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What became of a create call."""

    batch: Batch
    is_new: bool
    """False: an earlier try made it, and the object that was written for this one has no row."""


class InputWriter:
    """Writes lines into the object of an input. Made by `open_input`."""

    def __init__(self, stream: ObjectWriter, estimator: InputEstimator) -> None:
        self.size_bytes = 0
        """Of the lines so far, each with its line end."""
        self._stream = stream
        self._estimator = estimator
        self._block = bytearray()

    def write(self, line: bytes) -> None:
        """Write a line. Raises ServiceError."""
        self._block += line + b"\n"
        self.size_bytes += len(line) + 1
        if len(self._block) >= _WRITTEN_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what is held. Raises ServiceError."""
        block = bytes(self._block)
        self._estimator.feed(block)
        self._stream.write(block)
        self._block.clear()

    def new_file(self, object_key: str, *, filename: str) -> NewFile:
        """Return what was written, once it is whole."""
        return NewFile(
            object_key=object_key,
            filename=filename,
            purpose=Purpose.BATCH,
            size_bytes=self.size_bytes,
            estimate=self._estimator.finish(),
            expires_after_seconds=MAX_EXPIRY_SECONDS,
        )


@contextmanager
def open_input(storage: Storage, object_key: str, *, settings: Settings) -> Iterator[InputWriter]:
    """Open an object that no row names yet: whole when the block ends, and never there when the block raises."""
    with storage.writer(object_key) as stream:
        writer = InputWriter(stream, InputEstimator(default_max_tokens=settings.default_max_tokens))
        yield writer
        writer.flush()


def write_input(
    storage: Storage, object_key: str, lines: Iterable[bytes], *, filename: str, settings: Settings
) -> NewFile:
    """Write lines into an object that no row names yet; where `lines` raise nothing appears. Raises ServiceError."""
    with open_input(storage, object_key, settings=settings) as writer:
        for line in lines:
            writer.write(line)
    return writer.new_file(object_key, filename=filename)


def submit(
    session: Session,
    tenant: Tenant,
    wanted: CreateBatch,
    new: NewFile,
    settings: Settings,
    *,
    key_id: str | None = None,
    spend: Callable[[int], None] = lambda tokens: None,
) -> Made:
    """Name the object and create its batch, or return the batch that an earlier try made.

    `wanted.made_from` says what the input was made from, in place of a file's id. Raises what `create_batch` raises,
    and TooLargeError where the tenant keeps as many files as it may.
    """
    earlier = lifecycle.find_repeated(session, tenant, wanted)
    if earlier is not None:
        return Made(batch=earlier, is_new=False)
    files.hold_room(session, tenant.id)
    files.check_room(session, tenant.id, limits_of(tenant, settings), size_bytes=new.size_bytes)
    file = files.create_file(session, tenant.id, new)
    named = replace(wanted, input_file_id=file.id)
    batch = lifecycle.create_batch(session, tenant, named, settings, key_id=key_id, spend=spend)
    return Made(batch=batch, is_new=True)
