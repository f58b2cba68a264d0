"""Settings of indexes and searches."""

from __future__ import annotations

from pydantic import Field

from jobs.settings import Settings


class RetrievalSettings(Settings):
    tenant_indexes: int = Field(default=100, ge=0)
    """Indexes of a tenant."""
    index_passages: int = Field(default=300_000, gt=0)
    """Passages of one index, at most: with vectors of 384 numbers that is 0.5 GB, in memory while it is searched."""
    index_memory_mib: int = Field(default=1024, ge=0)
    """Memory that indexes keep in each API process between searches, about; the one that is searched has what it needs.
    """
