"""Tests of `tokenmill extract index`: run at a server, resumed, and refused in one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from cli.calls import Calls
from cli.extracting.index_command import _begun
from features.documents.tables import Extraction
from jobs.database import connect, sessions
from jobs.errors import InputError
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.all_settings import Settings
from tests.cli.service import Service, run
from tests.features.documents.answering import Answering
from tests.features.retrieval.stored_indexes import add_index
from tests.flows.advancers import extractions_of

PAPERS = {"a.txt": ["vendor: Ash Ltd", "Nothing else."], "b.txt": ["total: 12.50"]}
FIELDS = {"vendor": {"type": "string"}, "total": {"type": "string"}}


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"type": "object", "properties": FIELDS}))
    return path


@pytest.fixture(scope="module")
def answering(service: Service) -> Iterator[Answering]:
    engine = connect(service.database)
    yield Answering(sessions(engine), Storage(service.storage_url), Settings())
    engine.dispose()


@pytest.fixture(scope="module")
def index_id(answering: Answering) -> str:
    with answering.maker() as session:
        tenant = session.scalars(select(Tenant).where(Tenant.name == "acme")).one()
        return add_index(session, answering.storage, tenant, [PAPERS], num_passages=3).id


def work_off(answering: Answering) -> None:
    """Process everything until the only extraction has ended."""
    while True:
        with answering.maker() as session:
            found = session.scalars(select(Extraction)).one_or_none()
        if found is not None and found.ended_at is not None:
            return
        if found is not None:
            extractions_of(answering.maker, answering.storage, answering.settings).advance(found.id)
            answering.work_off()


@pytest.mark.timeout(120)
def test_an_index_is_asked_and_the_same_command_comes_back_to_it(
    service: Service, answering: Answering, index_id: str, schema: Path, tmp_path: Path
) -> None:
    output, table = tmp_path / "fields.jsonl", tmp_path / "fields.parquet"
    command = ("extract", "index", index_id, "--schema", schema, "-o", output, "--parquet", table)
    asking = service.start(*command)
    work_off(answering)
    _, said = asking.communicate(timeout=60)
    assert asking.returncode == 0, said
    (record,) = map(json.loads, output.read_text().splitlines())
    assert record["fields"] == {"vendor": "Ash Ltd", "total": "12.50"}
    assert [span["document"] for each in record["evidence"] for span in each["spans"]] == ["a.txt", "b.txt"]
    assert table.stat().st_size > 0
    output.unlink()
    again = service.run(*command)
    assert json.loads(output.read_text()) == record
    (listed,) = json.loads(service.run("extractions", "list", "--json").stdout)
    assert listed["id"] in again.stderr
    assert listed["index_id"] == index_id


def test_what_cannot_be_asked_of_an_index_is_a_sentence(service: Service, schema: Path, tmp_path: Path) -> None:
    given = ("--schema", schema, "-o", tmp_path / "fields.jsonl")
    with pytest.raises(InputError, match="No index found with id 'index_none'"):
        service.run("extract", "index", "index_none", *given)


def test_without_a_server_no_index_is_asked(schema: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="an index needs a server"):
        run("extract", "index", "index_1", "--schema", schema, "-o", tmp_path / "fields.jsonl")


def test_another_order_of_the_fields_is_another_extraction() -> None:
    keys = [key_of({"properties": dict(order)}) for order in (FIELDS.items(), reversed(FIELDS.items()))]
    assert keys[0] != keys[1]
    assert keys[0] == key_of({"properties": FIELDS})


def key_of(schema: dict[str, Any]) -> str:
    """Return the Idempotency-Key with which a schema is sent."""
    keys: list[str] = []

    class Noting(Calls):
        def post(self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None) -> dict[str, Any]:
            keys.append(key or "")
            return {"status": "in_progress"}

    _begun(Noting(None), {"schema": schema})
    return keys[0]


def test_outputs_that_cannot_be_written_are_refused_before_a_server_is_asked(
    schema: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "fields.jsonl"
    given = ("index", "index_1", "--schema", schema, "-o", output, "--parquet")
    with pytest.raises(InputError, match="two outputs have the same path"):
        run("extract", *given, output)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="needs the package pyarrow, which is not installed"):
        run("extract", *given, tmp_path / "fields.parquet")
