"""Batches whose input the service writes itself: the object first, then file and batch in one transaction.

The caller supplies the lines. A repeated create returns the batch made before; the object written for it stays unused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from jobs import file_room, files
from jobs.accounts.limits import limits_of
from jobs.batches import lifecycle
from jobs.batches.submission import CreateBatch
from jobs.files import MAX_EXPIRY_SECONDS, NewFile, Purpose
from jobs.lines.input_estimate import InputEstimator
from jobs.settings import MIB, Settings
from jobs.storage import ObjectWriter, Storage
from jobs.tables import Batch, File, Tenant

_WRITTEN_AT_ONCE = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Result of a create call."""

    batch: Batch
    is_new: bool
    """False: an earlier try made the batch, and no row references the object written for this one."""
    beside: Sequence[File] = ()
    """Further files that were asked for."""


class InputWriter:
    """Writes lines into the object of an input; made by `open_input`."""

    def __init__(self, stream: ObjectWriter, estimator: InputEstimator) -> None:
        self.size_bytes = 0
        """Size of the lines so far, including line ends."""
        self._stream = stream
        self._estimator = estimator
        self._block = bytearray()

    def write(self, line: bytes) -> None:
        """Write a line. Raises ServiceError."""
        self._block += line + b"\n"
        self.size_bytes += len(line) + 1
        if len(self._block) >= _WRITTEN_AT_ONCE:
            self.flush()

    def write_pieces(self, pieces: Iterable[bytes]) -> None:
        """Write a line that is too long to be held, with its line end if it has one. Raises ServiceError."""
        last = b""
        for last in pieces:
            self._block += last
            self.size_bytes += len(last)
            self.flush()
        if not last.endswith(b"\n"):
            self._block += b"\n"
            self.size_bytes += 1

    def flush(self) -> None:
        """Write buffered lines. Raises ServiceError."""
        block = bytes(self._block)
        self._estimator.feed(block)
        self._stream.write(block)
        self._block.clear()

    def new_file(self, object_key: str, *, filename: str) -> NewFile:
        """Return the written file, once it is complete."""
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
    """Open an object that no row references yet; it is created when the block ends, never when it raises."""
    with storage.writer(object_key) as stream:
        writer = InputWriter(stream, InputEstimator(default_max_tokens=settings.default_max_tokens))
        yield writer
        writer.flush()


def write_input(
    storage: Storage, object_key: str, lines: Iterable[bytes], *, filename: str, settings: Settings
) -> NewFile:
    """Write lines into an object that no row references yet; none is created where `lines` raise. Raises
    ServiceError."""
    with open_input(storage, object_key, settings=settings) as writer:
        for line in lines:
            writer.write(line)
    return writer.new_file(object_key, filename=filename)


def submit(
    session: Session,
    tenant: Tenant,
    request: CreateBatch,
    new: NewFile,
    settings: Settings,
    *,
    key_id: str | None = None,
    spend: Callable[[int], None] = lambda tokens: None,
    beside: Sequence[NewFile] = (),
) -> Made:
    """Insert the file and create its batch, or return the batch that an earlier try made. `beside` are inserted too.

    `request.made_from` identifies the input in place of a file id. Raises what `create_batch` raises, and TooLargeError
    where the tenant has reached its limit of files.
    """
    earlier = lifecycle.find_repeated(session, tenant, request)
    if earlier is not None:
        return Made(batch=earlier, is_new=False)
    file_room.hold_room(session, tenant.id)
    file_room.check_room(session, tenant.id, limits_of(tenant, settings), size_bytes=new.size_bytes)
    file, *others = files.create_files(session, tenant.id, [new, *beside])
    with_file = replace(request, input_file_id=file.id)
    batch = lifecycle.create_batch(session, tenant, with_file, settings, key_id=key_id, spend=spend, new_input=file)
    return Made(batch=batch, is_new=True, beside=others)
