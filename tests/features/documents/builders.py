"""The records of an extraction."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy.orm import Session

from features.documents.tables import Extraction
from jobs.storage import Storage
from jobs.tables import File


def records_of(session: Session, storage: Storage, extraction: Extraction) -> list[dict[str, Any]]:
    session.refresh(extraction)
    assert extraction.output_file_id is not None, extraction.reason
    key = session.get_one(File, extraction.output_file_id).object_key
    return [orjson.loads(line) for line in b"".join(storage.iter_chunks(key)).splitlines()]
