"""A leased chunk as whoever holds it sees it: one declaration of what is read of it, and of where that stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from typing import Any, ClassVar

from jobs.lines.reading import RawLine, split_lines
from jobs.partitions import batch_day
from jobs.states import ChunkState
from jobs.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRef:
    """A chunk under one fence, with what it takes to read its lines and to end its lease."""

    COLUMNS: ClassVar[str]
    """What a statement over `chunk`, `batch` and `file` selects: every field by its name, from the chunk's own column
    or from what `source` names."""

    chunk_id: int = field(metadata={"source": "chunk.id"})
    fence: int
    """Good for this lease only: the next one has a higher number."""
    batch_id: str
    tenant_id: str
    model: str
    priority: str = field(metadata={"source": "coalesce(chunk.charged_priority, chunk.priority)"})
    """The class in which it runs and is charged; a capped tenant's urgent chunk may run in the next one."""
    worker_id: str
    """Who was given the lease."""
    endpoint: str = field(metadata={"source": "batch.endpoint"})
    object_key: str = field(metadata={"source": "file.object_key"})
    """The input file's object; byte_start … byte_end of it hold the chunk's lines."""
    first_line: int
    num_lines: int
    """Blank ones included."""
    num_requests: int
    """Lines that are not blank: as many results make the chunk done."""
    byte_start: int
    byte_end: int
    """Exclusive."""
    estimated_tokens: int
    lost_leases: int = field(metadata={"source": "chunk.losses"})
    """Those before this one."""
    expires_at: datetime
    """The batch's deadline."""
    copies: list[int] | None
    """Lines that are the same as earlier ones of the batch but for their custom_id: a line, its original, a line …

    Of a part of a bisected chunk, those of the whole.
    """
    is_filled: bool = field(metadata={"source": "(batch.source_file_id IS NOT NULL)"})
    """Whether its lines say beside their bodies which passages we have put into them."""
    input_missed_at: datetime | None = field(metadata={"source": "batch.input_missed_at"})
    """Since when the store did not have the batch's input; None: it has it, as far as is known."""
    batch_created_at: datetime = field(metadata={"source": "batch.created_at"})

    @property
    def guard(self) -> Mapping[str, Any]:
        """Return what statements ask for that go by `LEASES.sql.is_held`."""
        return {"id": self.chunk_id, "fence": self.fence, "owner": self.worker_id, "state": ChunkState.LEASED.value}

    @property
    def batch_day(self) -> date:
        """Return the day that the batch's results are filed under."""
        return batch_day(self.batch_created_at)

    def read(self, storage: Storage) -> bytes:
        """Return the bytes of the chunk's lines. Raises ServiceError, or NotFoundError where not all are there."""
        return storage.read_whole_range(self.object_key, self.byte_start, self.byte_end)

    def split(self, content: bytes) -> list[RawLine]:
        """Return the request lines of the chunk's byte range, numbered and placed as in the file."""
        return split_lines(content, first_line=self.first_line, byte_start=self.byte_start)


ChunkRef.COLUMNS = ", ".join(
    f"{declared.metadata.get('source', f'chunk.{declared.name}')} AS {declared.name}" for declared in fields(ChunkRef)
)
