"""Tests of `tokenmill extractions`: list, show, records, cancel, and refusals in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jobs.database import connect, sessions
from jobs.errors import InputError
from jobs.storage import Storage
from tests.all_settings import Settings
from tests.cli.service import Service
from tests.features.documents.answering import Answering
from tests.features.documents.commands.collecting import collect, http_of
from tests.flows.advancers import extractions_of

VENDOR = {"type": "string", "x-tokenmill": {"required_for_auto": True}}
SCHEMA = {"type": "object", "properties": {"vendor": VENDOR}}


def ask(service: Service, content: bytes = b"vendor: Ash Ltd") -> str:
    """Create an extraction of one document; return its id."""
    collection_id = collect(service, "a.txt", content)
    with http_of(service) as http:
        asked: dict[str, Any] = {"collection_id": collection_id, "schema": SCHEMA, "model": "tiny"}
        return str(http.post("/extractions", json=asked).json()["id"])


def work_off(service: Service, extraction_id: str) -> None:
    engine = connect(service.database)
    maker, storage, settings = sessions(engine), Storage(service.storage_url), Settings()
    answering = Answering(maker, storage, settings)
    for _stage in range(6):
        extractions_of(maker, storage, settings).advance(extraction_id)
        answering.work_off()
    engine.dispose()


def test_an_extraction_is_listed_shown_and_read(service: Service, tmp_path: Path) -> None:
    extraction_id = ask(service)
    early = service.run("extractions", "results", extraction_id)
    assert (early.stdout, "is not completed" in early.stderr) == ("", True)
    work_off(service, extraction_id)
    (row,) = (line for line in service.run("extractions", "list").stdout.splitlines() if extraction_id in line)
    assert row.split("\t")[2:7] == ["completed", "ground_again", "1", "0", "0"]
    shown = json.loads(service.run("extractions", "show", extraction_id).stdout)
    assert json.loads(service.run("extractions", "list", "--json").stdout)[0] == shown
    output = tmp_path / "fields.jsonl"
    service.run("extractions", "results", extraction_id, "-o", output)
    assert json.loads(output.read_text())["fields"] == {"vendor": "Ash Ltd"}
    assert service.run("extractions", "results", extraction_id).stdout == output.read_text()
    with pytest.raises(InputError, match="--parquet needs --output"):
        service.run("extractions", "results", extraction_id, "--parquet", tmp_path / "fields.parquet")


def test_what_people_found_right_is_in_the_records_and_in_the_table(service: Service, tmp_path: Path) -> None:
    extraction_id = ask(service, b"nothing of the kind")
    work_off(service, extraction_id)
    output, parquet = tmp_path / "fields.jsonl", tmp_path / "fields.parquet"
    with http_of(service) as http:
        (review,) = http.get("/reviews", params={"extraction_id": extraction_id}).json()["data"]
        http.post(f"/reviews/{review['id']}", json={"verdict": "correct", "value": "Birch Ltd"})
    written = service.run("extractions", "results", extraction_id, "-o", output, "--parquet", parquet)
    assert "is not completed" not in written.stderr
    assert json.loads(output.read_text())["fields"] == {"vendor": "Birch Ltd"}
    assert pq.read_table(parquet).to_pydict()["vendor"] == ["Birch Ltd"]


def test_an_extraction_is_cancelled_and_an_unknown_one_is_a_sentence(service: Service) -> None:
    extraction_id = ask(service)
    assert service.run("extractions", "cancel", extraction_id).stdout == "cancelling\n"
    with pytest.raises(InputError, match="No extraction found"):
        service.run("extractions", "show", "extraction_none")
