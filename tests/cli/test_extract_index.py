"""Tests of `tokenmill extract index`: run at a server, resumed, and refused in one sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from jobs.errors import InputError
from jobs.tables import Tenant
from tests.cli.extracting_service import ExtractingService
from tests.cli.service import Service, run
from tests.features.retrieval.stored_indexes import add_index

PAPERS = {"a.txt": ["vendor: Ash Ltd", "Nothing else."], "b.txt": ["total: 12.50"]}
FIELDS = {"vendor": {"type": "string"}, "total": {"type": "string"}}


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"type": "object", "properties": FIELDS}))
    return path


@pytest.fixture(scope="module")
def index_id(extracting: ExtractingService) -> str:
    with extracting.maker() as session:
        tenant = session.scalars(select(Tenant).where(Tenant.name == "acme")).one()
        return add_index(session, extracting.answering.storage, tenant, [PAPERS], num_passages=3).id


@pytest.mark.timeout(120)
def test_an_index_is_asked_and_the_same_command_comes_back_to_what_is_kept(
    extracting: ExtractingService, index_id: str, schema: Path, tmp_path: Path
) -> None:
    output, table = tmp_path / "fields.jsonl", tmp_path / "fields.parquet"
    outputs = ("-o", output, "--parquet", table)
    command = ("extract", "index", index_id, "--schema", schema, *outputs, "--data-dir", tmp_path / "d")
    with extracting.working():
        asked = extracting.service.run(*command, "--keep")
    assert asked.exit_code == 0, asked.stderr
    (record,) = map(json.loads, output.read_text().splitlines())
    assert record["fields"] == {"vendor": "Ash Ltd", "total": "12.50"}
    assert [span["document"] for each in record["evidence"] for span in each["spans"]] == ["a.txt", "b.txt"]
    assert table.stat().st_size > 0
    (kept,) = extracting.stored()["extractions"]
    assert kept["index_id"] == index_id
    output.unlink()
    assert extracting.service.run(*command).exit_code == 0
    assert json.loads(output.read_text()) == record
    left = extracting.stored()
    assert (left["extractions"], left["batches"]) == ([], [])
    assert "is already complete" in extracting.service.run(*command).stderr


def test_what_cannot_be_asked_of_an_index_is_a_sentence(service: Service, schema: Path, tmp_path: Path) -> None:
    given = ("--schema", schema, "-o", tmp_path / "fields.jsonl")
    with pytest.raises(InputError, match="No index found with id 'index_none'"):
        service.run("extract", "index", "index_none", *given)


def test_without_a_server_no_index_is_asked(schema: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="an index needs a server"):
        run("extract", "index", "index_1", "--schema", schema, "-o", tmp_path / "fields.jsonl", "--data-dir", tmp_path)


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
