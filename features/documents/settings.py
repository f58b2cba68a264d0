"""Settings of documents and of the processes that read them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from jobs.settings import MIB, Settings


class DocumentSettings(Settings):
    tenant_collections: int = Field(default=1000, ge=0)
    """Collections of documents of a tenant."""
    collection_documents: int = Field(default=100_000, gt=0)
    """Documents of one collection, at most."""
    max_document_bytes: int = Field(default=512 * MIB, gt=0, le=512 * MIB)
    """Size of one document of a collection, at most."""
    max_schema_bytes: int = Field(default=MIB, gt=0)
    """Size of the schema of an extraction as compact JSON, at most."""
    tenant_open_extractions: int = Field(default=100, ge=0)
    """Extractions of a tenant that have not ended."""
    prepare_processes: int = Field(default=2, gt=0, le=256)
    """Documents that one prepare worker reads at once, each in a process of its own, and one more for a tenant of whom
    it reads none; it keeps as many chunks open."""
    reader_isolation: Literal["best", "required"] = "best"
    """Readers of documents are confined by what the kernel has. `required`: a prepare worker that lacks any layer names
    it and does not start: not in a container of Docker's defaults. See [docs/extraction.md](extraction.md#readers)."""
    reader_seconds: float = Field(default=60.0, gt=0)
    """Processor time that a reader has for the largest documents, and beside it as much for each page that is read by
    OCR."""
    reader_base_seconds: float = Field(default=8.0, gt=0)
    """Of that, what the smallest document has; each MiB of a file has 12 seconds more."""
    reader_memory_mib: int = Field(default=2048, gt=0)
    """Address space that a reader has for the largest documents, and for pages that are read by OCR."""
    reader_base_memory_mib: int = Field(default=320, gt=0)
    """Of that, what the smallest document has beside what a reader has loaded; each byte of a file has 1 KiB more."""
