"""An extraction that has ended without workers, for later tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from jobs.database import sessions
from jobs.storage import Storage
from tests.features.documents.answering import Answering
from tests.flows.advancers import extractions_of


def completed_extraction(
    http: httpx.Client, deployment: Any, schema: Mapping[str, Any], *contents: bytes, name: str = "{}.txt"
) -> str:
    """Extract fields of these documents, `0.txt` …, without asking again: values that the model omits are doubtful."""
    collection_id = http.post("/v1/collections", json={"name": "papers"}).json()["id"]
    ids = []
    for number, content in enumerate(contents):
        file = {"file": (name.format(number), content)}
        ids.append(http.post("/v1/files", data={"purpose": "user_data"}, files=file).json()["id"])
    http.post(f"/v1/collections/{collection_id}/documents", json={"file_ids": ids})
    asked = {"collection_id": collection_id, "schema": schema, "model": "org/tiny", "again": False}
    made = http.post("/v1/extractions", json=asked).json()
    maker, storage = sessions(deployment.engine), Storage(deployment.settings.storage_url)
    answering = Answering(maker, storage, deployment.settings)
    for _ in range(4):
        extractions_of(maker, storage, deployment.settings).advance(made["id"])
        answering.work_off()
    assert http.get(f"/v1/extractions/{made['id']}").json()["status"] == "completed"
    return str(made["id"])
