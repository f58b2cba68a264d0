"""Complete an upload: claim it, concatenate its parts in the store, then create the file's row.

A row holds the claim and its end. If the process dies, the upload stays pending and at most an unreferenced object is
left, which is swept as a leftover; the next process starts over.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from sqlalchemy import delete
from sqlalchemy.orm import Session, sessionmaker

from jobs import file_room, files
from jobs.accounts.limits import Limits
from jobs.claims.claims import Claim, Claims
from jobs.database import transaction
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.files import NewFile, Purpose
from jobs.lines.input_estimate import InputEstimate, InputEstimator
from jobs.states import UploadState
from jobs.storage import Storage
from jobs.tables import Upload, UploadPart
from jobs.uploads import records

CLAIM = timedelta(minutes=2)
"""Renewed before each part, which takes seconds."""


COMPLETIONS = Claims(Upload, [UploadState.PENDING], ends_with_state=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Claim):
    """An upload that one process is completing."""

    tenant_id: str
    parts: Sequence[UploadPart]
    """In the order of the file."""
    upload: Upload


def check_md5(md5: str | None) -> str | None:
    """Return a checksum normalised for comparison. Raises InputError."""
    if md5 is None or re.fullmatch("[0-9a-fA-F]{32}", md5):
        return md5 and md5.lower()
    raise InputError(
        f"Invalid value for 'md5': {md5[:100]!r}. Give the MD5 of the file as 32 hexadecimal digits.",
        param="md5",
        code="invalid_value",
    )


def begin(session: Session, tenant_id: str, upload_id: str, part_ids: Sequence[str]) -> Upload | Completion | None:
    """Claim an upload; return it where an equal call has completed it, None while another process is completing it.

    Raises InputError where it has ended otherwise, or these parts are not the whole file.
    """
    upload = records.get(session, tenant_id, upload_id)
    if upload.state == UploadState.COMPLETED and upload.part_ids == list(part_ids):
        return upload
    records.require_pending(session, tenant_id, upload_id)
    parts = _chosen(session, upload, part_ids)
    claim = COMPLETIONS.claim(session, upload_id, lease=CLAIM)
    if claim is None:
        return None
    return Completion(**asdict(claim), tenant_id=tenant_id, parts=parts, upload=upload)


def _chosen(session: Session, upload: Upload, part_ids: Sequence[str]) -> list[UploadPart]:
    by_id = {part.id: part for part in records.parts_of(session, upload.id)}
    for part_id in part_ids:
        if part_id not in by_id:
            raise _wrong_parts(f"Upload {upload.id!r} has no part {part_id[:100]!r}")
    if len(set(part_ids)) < len(part_ids):
        raise _wrong_parts("A part is named twice")
    parts = [by_id[part_id] for part_id in part_ids]
    size = sum(part.size_bytes for part in parts)
    if size != upload.size_bytes:
        raise _wrong_parts(f"The parts have {size:,} bytes together and the upload has {upload.size_bytes:,}")
    return parts


def _wrong_parts(what: str) -> InputError:
    message = f"{what}. Name every part of the file once, in the file's order; GET the upload lists the parts it has."
    return InputError(message, param="part_ids", code="invalid_value")


def put_together(
    maker: sessionmaker[Session], storage: Storage, completion: Completion, *, md5: str | None, default_max_tokens: int
) -> NewFile:
    """Store the whole file, holding a few pieces in memory, and count its requests; a single part is used as it is.

    Raises FencedOutError where the claim has ended, InputError where the checksum differs, ConflictError where the
    store has lost a part, and ServiceError. On an error at most an unreferenced object is left.
    """
    upload, parts = completion.upload, completion.parts
    try:
        estimate = None
        if upload.purpose == Purpose.BATCH:
            estimate = count(storage, parts, default_max_tokens=default_max_tokens)
        key, actual_md5 = _store(storage, completion, keep=lambda: _renew(maker, completion), is_hashed=md5 is not None)
    except NotFoundError as error:
        message = f"A part of upload {upload.id!r} is lost ({error}). Create another upload and send the file again."
        raise ConflictError(message, code="part_lost") from None
    if md5 is not None and actual_md5 != md5:
        if len(parts) > 1:
            storage.delete(key)
        message = (
            f"The file has the MD5 {actual_md5} and {md5} was given. Compare the parts and their order with the file."
        )
        raise InputError(message, param="md5", code="md5_mismatch")
    return NewFile(
        object_key=key,
        filename=upload.filename,
        purpose=upload.purpose,
        size_bytes=upload.size_bytes,
        estimate=estimate,
        expires_after_seconds=upload.file_expires_after_seconds,
    )


def _store(
    storage: Storage, completion: Completion, *, keep: Callable[[], None], is_hashed: bool
) -> tuple[str, str | None]:
    """Return the key of the whole file, and its MD5 where requested."""

    def kept() -> Iterator[str]:
        for part in completion.parts:
            keep()
            yield part.object_key

    if len(completion.parts) == 1:
        (part,) = completion.parts
        return part.object_key, part.md5
    key, digest = files.new_object_key(completion.tenant_id), hashlib.md5(usedforsecurity=False)
    storage.join(key, kept(), seen=digest.update if is_hashed else None)
    return key, digest.hexdigest()


def count(storage: Storage, parts: Sequence[UploadPart], *, default_max_tokens: int) -> InputEstimate:
    """Return the counts of the parts plus those of lines that span parts: only those are read."""
    ends = InputEstimator(default_max_tokens=default_max_tokens)
    total = ends.so_far
    for part in parts:
        total += InputEstimate(
            num_requests=part.num_requests,
            estimated_input_tokens=part.estimated_input_tokens,
            estimated_output_tokens=part.estimated_output_tokens,
        )
        for start, stop in ((0, part.head_bytes), (part.size_bytes - part.tail_bytes, part.size_bytes)):
            for piece in storage.iter_range(part.object_key, start, stop):
                ends.feed(piece)
    return total + ends.finish()


def finish(session: Session, completion: Completion, new: NewFile, limits: Limits) -> Upload:
    """Create the file's row; its parts are freed in the same transaction, and count no more.

    Raises FencedOutError where the claim or the upload has ended, TooLargeError where the tenant has no room.
    """
    file_room.hold_room(session, completion.tenant_id)
    upload = COMPLETIONS.lock(session, completion)
    records.end(session, upload, UploadState.COMPLETED, by=None)
    session.execute(delete(UploadPart).where(UploadPart.object_key == new.object_key))  # that object is the file now
    file_room.check_room(session, upload.tenant_id, limits, size_bytes=new.size_bytes)
    upload.file_id = files.create_file(session, upload.tenant_id, new).id
    upload.part_ids = [part.id for part in completion.parts]
    session.flush()
    return upload


def give_up(session: Session, completion: Completion) -> None:
    """Let the next process start at once."""
    COMPLETIONS.give_up(session, completion)


def _renew(maker: sessionmaker[Session], completion: Completion) -> None:
    with transaction(maker) as session:
        COMPLETIONS.renew(session, completion, lease=CLAIM)
