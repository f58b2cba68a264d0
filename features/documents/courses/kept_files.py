"""Files that an extraction keeps: its documents and plan when it began, and its latest records."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from features.documents.tables import Extraction
from jobs import files
from jobs.files import NewFile
from jobs.tables import File


def replace(session: Session, extraction: Extraction, new: Mapping[str, NewFile]) -> None:
    """Name stored objects in a locked extraction, by column; what was named there is deleted."""
    for column, file in new.items():
        delete(session, extraction, column)
        setattr(extraction, column, files.create_file(session, extraction.tenant_id, file).id)


def delete(session: Session, extraction: Extraction, column: str) -> None:
    """Delete the file of a column, unless there is none or its owner has deleted it."""
    of_it = (File.id == getattr(extraction, column)) & File.deleted_at.is_(None)
    files.mark_deleted(session, session.scalars(select(File).where(of_it).with_for_update()).all(), by=extraction.id)
