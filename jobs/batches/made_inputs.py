"""Batches whose input is written here and not uploaded: the object first, then file and batch in one transaction.

What is in it, the caller decides. Sent again such a create returns the batch made before, and its object is needed by
nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from jobs import files
from jobs.accounts.limits import limits_of
from jobs.batches import lifecycle
from jobs.batches.submission import CreateBatch
from jobs.files import MAX_EXPIRY_SECONDS, NewFile, Purpose
from jobs.lines.input_estimate import InputEstimator
from jobs.settings import MIB, Settings
from jobs.storage import Storage
from jobs.tables import Batch, Tenant

_WRITTEN_AT_ONCE = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What became of a create call."""

    batch: Batch
    is_new: bool
    """False: an earlier try made it, and the object that was written for this one has no row."""


def write_input(
    storage: Storage, object_key: str, lines: Iterable[bytes], *, filename: str, settings: Settings
) -> NewFile:
    """Write lines into an object that no row names yet; where `lines` raise nothing appears. Raises ServiceError."""
    estimator = InputEstimator(default_max_tokens=settings.default_max_tokens)
    with storage.writer(object_key) as writer:
        block = bytearray()
        for line in lines:
            block += line + b"\n"
            if len(block) >= _WRITTEN_AT_ONCE:
                estimator.feed(bytes(block))
                writer.write(bytes(block))
                block.clear()
        estimator.feed(bytes(block))
        writer.write(bytes(block))
    return NewFile(
        object_key=object_key,
        filename=filename,
        purpose=Purpose.BATCH,
        size_bytes=writer.size_bytes,
        estimate=estimator.finish(),
        expires_after_seconds=MAX_EXPIRY_SECONDS,
    )


def submit(
    session: Session,
    tenant: Tenant,
    wanted: CreateBatch,
    new: NewFile,
    settings: Settings,
    *,
    key_id: str | None = None,
    spend: Callable[[int], None] = lambda tokens: None,
) -> Made:
    """Name the object and create its batch, or return the batch that an earlier try made.

    `wanted.made_from` says what the input was made from, in place of a file's id. Raises what `create_batch` raises,
    and TooLargeError where the tenant keeps as many files as it may.
    """
    earlier = lifecycle.find_repeated(session, tenant, wanted)
    if earlier is not None:
        return Made(batch=earlier, is_new=False)
    files.hold_room(session, tenant.id)
    files.check_room(session, tenant.id, limits_of(tenant, settings), size_bytes=new.size_bytes)
    file = files.create_file(session, tenant.id, new)
    named = replace(wanted, input_file_id=file.id)
    batch = lifecycle.create_batch(session, tenant, named, settings, key_id=key_id, spend=spend)
    return Made(batch=batch, is_new=True)
