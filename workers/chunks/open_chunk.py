"""The values that the parts of a `ChunkRun` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from jobs.chunks.leasing import ClaimedChunk
from jobs.settings import Settings
from workers.chunks.answerer import ChunkLines, L
from workers.chunks.lease import ChunkLease
from workers.chunks.services import Services
from workers.chunks.submitted import SubmittedLines


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenChunk(Generic[L]):
    """A running chunk."""

    services: Services
    lease: ChunkLease
    lines: ChunkLines[L]
    submitted: SubmittedLines[L]

    @classmethod
    def of(cls, lines: ChunkLines[L], services: Services) -> OpenChunk[L]:
        lease = ChunkLease(lines.claim, services)
        return cls(services=services, lease=lease, lines=lines, submitted=SubmittedLines(lines))

    @property
    def claim(self) -> ClaimedChunk:
        return self.lines.claim

    @property
    def settings(self) -> Settings:
        return self.services.settings
