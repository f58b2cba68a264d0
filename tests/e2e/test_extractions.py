"""Tests of documents uploaded with the official client and extracted by the whole stack, with any worker killed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from examples.make_papers import make_papers

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "examples/extract/invoice.schema.json").read_text())
NUM_PAPERS = 20
BROKEN = {"cut.pdf": b"%PDF-1.7\n1 0 obj\n", "empty.txt": b""}
TIMEOUT_SECONDS = 300


NOTES = {
    "boats.md": b"# Boats\n\nThe ferry leaves at nine, and again at noon.",
    "garden.txt": b"Roses are cut back in March. Tulips are planted in October.",
    "minutes.txt": b"The board met on Tuesday. Nobody was absent, and nothing was decided.",
}


def until_ended(stack: Any, extraction_id: str, *, kill_at: dict[str, str]) -> dict[str, Any]:
    """Wait for an extraction's end; when a stage of `kill_at` is reached, kill that role once."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with stack.client() as client:
        while time.monotonic() < deadline:
            found: dict[str, Any] = client.get(f"/extractions/{extraction_id}", cast_to=httpx.Response).json()
            if found["ended_at"] is not None:
                return found
            stage = found["stages"][-1]["name"] if found["stages"] else None
            role = stack.role(kill_at.get(stage, "nobody")) if stage is not None else None
            if stage is not None and role is not None:
                del kill_at[stage]
                kill(role)
            time.sleep(0.2)
    raise AssertionError(f"it has not ended: {found}; logs: {stack.logs()}")


def kill(process: psutil.Process) -> None:
    process.kill()


def test_documents_become_records_though_workers_are_killed_on_the_way(stack: Any, tmp_path: Path) -> None:
    papers = {paper.name: paper for paper in make_papers(NUM_PAPERS, seed=3)}
    contents = {name: paper.content for name, paper in papers.items()} | BROKEN
    with stack.client() as client:
        ids = [client.files.create(file=(name, content), purpose="user_data").id for name, content in contents.items()]
        collection = client.post("/collections", body={"name": "papers"}, cast_to=httpx.Response).json()
        url = f"/collections/{collection['id']}/documents"
        client.post(url, body={"file_ids": ids}, cast_to=httpx.Response)
        asked = {"collection_id": collection["id"], "schema": SCHEMA, "model": "demo", "completion_window": "1h"}
        made = client.post("/extractions", body=asked, cast_to=httpx.Response).json()
    kill_at = {"read": "prepare", "ask": "worker", "ground": "control"}
    ended = until_ended(stack, made["id"], kill_at=kill_at)
    assert ended["status"] == "completed", ended
    assert kill_at == {}, "each was reached and killed"
    assert ended["document_counts"] == {"total": len(contents), "completed": NUM_PAPERS, "failed": len(BROKEN)}

    output = tmp_path / "fields.jsonl"
    written = stack.run("extractions", "results", made["id"], "-o", output)
    assert written.returncode == 0, written.stderr
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["document"] for record in records] == list(contents)
    assert {record["document"]: record["error"]["code"] for record in records[NUM_PAPERS:]} == {
        "cut.pdf": "truncated",
        "empty.txt": "empty",
    }
    right = [
        record["fields"][name] == value
        for record in records[:NUM_PAPERS]
        for name, value in papers[record["document"]].fields.items()
    ]
    assert sum(right) >= 0.8 * len(right), f"{sum(right)} of {len(right)}"
    grounded = [each for record in records[:NUM_PAPERS] for each in record["evidence"] if each["spans"]]
    assert all(span["page"] == 0 for each in grounded for span in each["spans"])
    assert grounded

    listed = stack.run("extractions", "list")
    assert made["id"] in listed.stdout
    assert "completed" in listed.stdout
    audit = stack.audit()
    assert audit.returncode == 0, audit.stdout


def test_fields_of_an_index_come_from_the_document_that_states_them(stack: Any, tmp_path: Path) -> None:
    (paper,) = make_papers(1, seed=3)
    contents = {paper.name: paper.content} | NOTES
    with stack.client() as client:
        ids = [client.files.create(file=(name, content), purpose="user_data").id for name, content in contents.items()]
        collection = client.post("/collections", body={"name": "papers"}, cast_to=httpx.Response).json()
        client.post(f"/collections/{collection['id']}/documents", body={"file_ids": ids}, cast_to=httpx.Response)
        built = stack.run("indexes", "create", collection["id"], "--language", "english", "--wait")
        assert built.returncode == 0, built.stderr
        asked = {"index_id": built.stdout.strip(), "schema": schema_of(paper), "model": "demo", "top_k": 3}
        made = client.post("/extractions", body=asked, cast_to=httpx.Response).json()
    ended = until_ended(stack, made["id"], kill_at={})
    assert ended["status"] == "completed", ended

    schema, output = tmp_path / "s.json", tmp_path / "fields.jsonl"
    schema.write_text(json.dumps(asked["schema"]))
    command = ("extract", "index", asked["index_id"], "--schema", schema, "-o", output, "--model", "demo")
    done = stack.run(*command)
    assert done.returncode == 0, done.stderr
    (record,) = map(json.loads, output.read_text().splitlines())
    right = [record["fields"][name] == value for name, value in paper.fields.items() if name in record["fields"]]
    assert sum(right) >= 0.5 * len(right), record["fields"]
    spans = [span for each in record["evidence"] for span in each["spans"]]
    assert {(span["document"], span["page"]) for span in spans} == {(paper.name, 0)}
    assert all(span["box"] is not None for span in spans)
    written = output.read_bytes()
    assert stack.run(*command).returncode == 0
    assert output.read_bytes() == written, "the same command comes back to what was asked"
    audit = stack.audit()
    assert audit.returncode == 0, audit.stdout


def schema_of(paper: Any) -> dict[str, Any]:
    """Return a schema of the fields that a paper states, each with the words that locate its type."""
    names = [name for name, value in paper.fields.items() if value is not None]
    told = {name: {**SCHEMA["properties"][name], "description": f"of the {paper.fields['type']}"} for name in names}
    return {"type": "object", "properties": told}
