"""The input of a batch that grew: its file and the segments added to it, read as one, and made one at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from jobs import files
from jobs.batches.claims import BatchWork
from jobs.storage import Storage
from jobs.tables import Batch, File, InputDigest, InputSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """An object with lines of an input."""

    object_key: str
    size_bytes: int


class WholeInput:
    """All lines of a batch, in their order."""

    def __init__(self, work: BatchWork, storage: Storage, file: File) -> None:
        self._work = work
        self._storage = storage
        first = Segment(object_key=file.object_key, size_bytes=file.size_bytes)
        self._segments = [first, *self._added()]

    @property
    def has_grown(self) -> bool:
        """Return whether lines are in other objects than that of its file."""
        return len(self._segments) > 1

    def pieces(self) -> Iterator[bytes]:
        """Yield its content. Raises NotFoundError where the store lacks a part, ServiceError."""
        for segment in self._segments:
            yield from self._work.checked(self._storage.iter_chunks(segment.object_key))

    def is_whole(self) -> bool:
        """Return whether the store has all of it. Raises ServiceError."""
        return all(self._storage.has_whole(each.object_key, each.size_bytes) for each in self._segments)

    def written_as_one(self, tenant_id: str) -> Segment:
        """Write its content into one object, which no row names yet. Raises ServiceError."""
        key = files.new_object_key(tenant_id)
        return Segment(object_key=key, size_bytes=self._storage.put(key, self.pieces()))

    def _added(self) -> Sequence[Segment]:
        of_it = select(InputSegment).where(InputSegment.batch_id == self._work.claim.id)
        with self._work.reading() as session:
            rows = session.scalars(of_it.order_by(InputSegment.first_line)).all()
        return [Segment(object_key=row.object_key, size_bytes=row.size_bytes) for row in rows]


def close(session: Session, batch: Batch) -> None:
    """Record that no line will be added to a locked batch: it ends with its last line."""
    if batch.is_growing:
        batch.is_growing = False
        session.execute(delete(InputDigest).where(InputDigest.batch_id == batch.id))


def join(session: Session, batch: Batch, whole: Segment) -> None:
    """Let the file of a locked batch name its whole input. Objects of segments are swept: a reader may be at one."""
    file = session.get_one(File, batch.input_file_id)
    files.claim_objects(session, whole.object_key)
    file.object_key, file.size_bytes = whole.object_key, whole.size_bytes
    session.execute(delete(InputSegment).where(InputSegment.batch_id == batch.id))
