"""Record of deletions: what was deleted, when and by whom. It outlives its subjects, and has none of their contents."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import StrEnum

from sqlalchemy import bindparam, insert, select
from sqlalchemy.orm import Session

from jobs.tables import Deletion

log = logging.getLogger(__name__)

OPERATOR = "operator"
"""Deleted by the operator, at the command line."""
EXPIRY = "expiry"
"""Deleted because `expires_after` or `output_expires_after` has passed."""
RETENTION = "retention"
"""Deleted at the end of the results' retention."""
SWEEP = "sweep"
"""Deleted by the sweep of unreferenced objects."""


class Deleted(StrEnum):
    """Kinds of deleted things."""

    TENANT = "tenant"
    BATCH = "batch"
    FILE = "file"
    RESULTS = "results"  # the lines of a batch; its id is the batch's
    RESULT_DAY = "result_day"  # the lines of all batches of a day; its id is the day
    UPLOAD = "upload"  # the parts of a cancelled or expired upload
    COLLECTION = "collection"
    DOCUMENT = "document"  # of a collection, with its read text
    EXTRACTION = "extraction"
    INDEX = "index"  # of a collection
    OBJECT = "object"  # an unreferenced object in the store; its id is the key


def record(session: Session, kind: Deleted, subjects: Iterable[tuple[str, str | None]], *, by: str) -> None:
    """Write an entry for each (id, tenant id), in the transaction that deletes them."""
    rows = [
        {"kind": kind.value, "subject_id": subject_id, "tenant_id": tenant_id, "deleted_by": by}
        for subject_id, tenant_id in subjects
    ]
    if rows:
        session.execute(insert(Deletion), rows)
    for row in rows:
        log.info("deleted kind=%(kind)s id=%(subject_id)s tenant_id=%(tenant_id)s by=%(deleted_by)s", row)


def find(session: Session, kind: Deleted, *subject_ids: str) -> Deletion | None:
    """Return the first entry about one of these things; None where none was deleted."""
    entry: Deletion | None = session.scalar(_FIRST, {"kind": kind.value, "subject_ids": list(subject_ids)})
    return entry


_ABOUT = (Deletion.subject_id.in_(bindparam("subject_ids", expanding=True)), Deletion.kind == bindparam("kind"))
_FIRST = select(Deletion).where(*_ABOUT).order_by(Deletion.id).limit(1)
