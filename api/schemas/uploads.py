"""`/v1/uploads`: a file in parts, and one part."""

from __future__ import annotations

from typing import Literal, Self

from api.schemas.files import FileObject
from api.schemas.wire import WireModel, unix_seconds
from jobs.files import Purpose
from jobs.states import UploadState
from jobs.tables import File, Upload, UploadPart


class UploadPartObject(WireModel):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str
    bytes: int
    md5: str
    """MD5 of its bytes, in hexadecimal digits: a client that resumes an upload compares it and sends no part twice."""

    @classmethod
    def of(cls, part: UploadPart) -> Self:
        return cls(
            id=part.id,
            created_at=unix_seconds(part.created_at),
            upload_id=part.upload_id,
            bytes=part.size_bytes,
            md5=part.md5,
        )


class UploadObject(WireModel):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    """Size of the whole file, as given at creation."""
    created_at: int
    filename: str
    purpose: Purpose
    status: UploadState
    expires_at: int
    """An hour after its newest part: then it expires, and its parts are deleted."""
    file: FileObject | None
    """Set once it is completed, until that file is deleted."""

    @classmethod
    def of(cls, upload: Upload, file: File | None = None) -> Self:
        return cls(
            id=upload.id,
            bytes=upload.size_bytes,
            created_at=unix_seconds(upload.created_at),
            filename=upload.filename,
            purpose=Purpose(upload.purpose),
            status=UploadState(upload.state),
            expires_at=unix_seconds(upload.expires_at),
            file=None if file is None else FileObject.of(file),
        )


class UploadWithParts(UploadObject):
    parts: list[UploadPartObject]
    """The received parts, oldest first."""
