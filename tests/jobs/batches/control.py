"""A control worker's part in a batch, for tests that continue in their own session."""

from __future__ import annotations

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches.finalisation import finalise_batch
from jobs.batches.validation import validate_batch
from jobs.database import sessions
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage


def validate(session: Session, storage: Storage, batch_id: str, *, settings: Settings) -> BatchState | None:
    """Commit the session's changes, validate the batch, and let the session read everything anew."""
    try:
        return validate_batch(_others(session), storage, batch_id, settings=settings)
    finally:
        session.expire_all()


def finalise(session: Session, storage: Storage, batch_id: str) -> BatchState | None:
    """Commit the session's changes, write the batch's files, and let the session read everything anew."""
    try:
        return finalise_batch(_others(session), storage, batch_id, settings=Settings())
    finally:
        session.expire_all()


def _others(session: Session) -> sessionmaker[Session]:
    session.commit()
    engine = session.get_bind()
    assert isinstance(engine, Engine)
    return sessions(engine)
