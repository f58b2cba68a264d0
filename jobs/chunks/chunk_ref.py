"""A leased chunk: its fields and where SQL reads each of them, declared once."""

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
    """A chunk under one fence, with the fields needed to read its lines and to end its lease."""

    COLUMNS: ClassVar[str]
    """Columns selected by a statement over `chunk`, `batch` and `file`: every field by its name, from the chunk's own
    column or from its `source`."""

    chunk_id: int = field(metadata={"source": "chunk.id"})
    fence: int
    """Valid for this lease only; the next one has a higher number."""
    batch_id: str
    tenant_id: str
    model: str
    priority: str = field(metadata={"source": "coalesce(chunk.charged_priority, chunk.priority)"})
    """The class in which it runs and is charged; an urgent chunk of a capped tenant may run one class lower."""
    worker_id: str
    """Owner of the lease."""
    endpoint: str = field(metadata={"source": "batch.endpoint"})
    object_key: str = field(metadata={"source": "coalesce(chunk.segment_key, file.object_key)"})
    """Object of the input file or a segment of it; its bytes byte_start … byte_end are the chunk's lines."""
    first_line: int
    num_lines: int
    """Including blank lines."""
    num_requests: int
    """Lines that are not blank: the chunk is done when it has as many results."""
    byte_start: int
    byte_end: int
    """Exclusive."""
    estimated_tokens: int
    lost_leases: int = field(metadata={"source": "chunk.losses"})
    """Number of lost leases before this one."""
    expires_at: datetime
    """Deadline of the batch."""
    copies: list[int] | None
    """Lines that equal an earlier line of the batch except for the custom_id, as pairs: line, original, line, original
    …

    For a part of a bisected chunk, those of the whole chunk.
    """
    is_filled: bool = field(metadata={"source": "(batch.source_file_id IS NOT NULL)"})
    """Whether its lines carry, beside their bodies, the ids of passages that retrieval put into them."""
    input_missed_at: datetime | None = field(metadata={"source": "batch.input_missed_at"})
    """Since when the store did not have the batch's input; None: it has it, as far as is known."""
    adapter: str | None = field(metadata={"source": "batch.adapter"})
    """The model that its lines name, where `model` is their base."""
    server_model: str | None = field(metadata={"source": "batch.server_model"})
    """The adapter's name at the servers."""
    batch_created_at: datetime = field(metadata={"source": "batch.created_at"})

    @property
    def named_model(self) -> str:
        """Return the model that its lines name, and are billed for."""
        return self.adapter or self.model

    @property
    def guard(self) -> Mapping[str, Any]:
        """Return the parameters of `LEASES.sql.is_held`."""
        return {"id": self.chunk_id, "fence": self.fence, "owner": self.worker_id, "state": ChunkState.LEASED.value}

    @property
    def batch_day(self) -> date:
        """Return the day under which the batch's results are filed."""
        return batch_day(self.batch_created_at)

    def read(self, storage: Storage) -> bytes:
        """Return the bytes of the chunk's lines. Raises ServiceError, or NotFoundError where some are missing."""
        return storage.read_whole_range(self.object_key, self.byte_start, self.byte_end)

    def split(self, content: bytes) -> list[RawLine]:
        """Return the request lines in the chunk's byte range, with their numbers and offsets in the file."""
        return split_lines(content, first_line=self.first_line, byte_start=self.byte_start)


ChunkRef.COLUMNS = ", ".join(
    f"{declared.metadata.get('source', f'chunk.{declared.name}')} AS {declared.name}" for declared in fields(ChunkRef)
)
