"""`/v1/files`: a file, and the answer to its deletion."""

from __future__ import annotations

from typing import Literal, Self

from api.schemas.wire import DeletedObject, ListedObject, Page, WholeList, unix_seconds, unix_seconds_or_none
from jobs.files import Purpose
from jobs.tables import File


class FileObject(ListedObject):
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    """Null if the file is kept until it is deleted."""
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"
    """Files are immutable and usable at once."""
    status_details: None = None

    @classmethod
    def of(cls, file: File) -> Self:
        return cls(
            id=file.id,
            bytes=file.size_bytes,
            created_at=unix_seconds(file.created_at),
            expires_at=unix_seconds_or_none(file.expires_at),
            filename=file.filename,
            purpose=file.purpose,
        )


class FilePage(Page[FileObject]):
    """Newest first by default."""


class FileList(WholeList[FileObject]):
    """The files of one request, in the order sent."""


class DeletedFile(DeletedObject):
    object: Literal["file"] = "file"
