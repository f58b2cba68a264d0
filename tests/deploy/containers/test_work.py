"""Tests of work in containers: a batch, an extraction, a pipeline, an index, with each container killed on the way."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pyarrow.parquet
import pytest
import yaml

from examples.make_papers import make_papers
from tests.deploy.containers.builders import NOTES, SCHEMA, collect, ended, lines
from tests.deploy.containers.composed import ROLES, Composed, until
from tests.e2e.builders import Customer

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]


def test_every_container_becomes_healthy(stack: Composed) -> None:
    containers = [each for name in (*ROLES, "postgres", "redis") for each in stack.ids(name)]
    assert len(containers) == len(ROLES) + 2

    def states() -> set[str]:
        return {stack.inspect(each, "{{.State.Health.Status}}") for each in containers}

    until(lambda: states() == {"healthy"}, stack)


def test_the_doctor_finds_nothing(stack: Composed) -> None:
    assert "error" not in stack.execute("api", "tokenmill", "doctor").lower()


def test_a_batch_of_the_official_client(customer: Customer) -> None:
    answers = customer.answers(customer.submit(lines(200)), num_lines=200)
    assert len({each["custom_id"] for each in answers}) == 200
    assert customer.stack.audit() == "clean"


def test_fields_are_extracted_from_a_pdf(customer: Customer, tmp_path: Path) -> None:
    papers = {paper.name: paper for paper in make_papers(4, seed=3)}
    contents = {name: paper.content for name, paper in papers.items()}
    assert any(name.endswith(".pdf") for name in contents)
    asked = {"collection_id": collect(customer, contents), "schema": SCHEMA, "model": "demo", "completion_window": "1h"}
    made = customer.call("POST", "/extractions", json=asked).json()
    assert ended(customer, f"/extractions/{made['id']}")["document_counts"] == {
        "total": 4,
        "completed": 4,
        "failed": 0,
    }
    output = tmp_path / "fields.jsonl"
    customer.stack.tokenmill("extractions", "results", made["id"], "-o", str(output))
    records = [json.loads(line) for line in output.read_text().splitlines()]
    right = [
        record["fields"][name] == value
        for record in records
        for name, value in papers[record["document"]].fields.items()
    ]
    assert sum(right) / len(right) > 0.8


def test_a_pipeline_writes_a_parquet_file_for_the_rows_of_one(customer: Customer, stores: Path, tmp_path: Path) -> None:
    stack = customer.stack
    (stores / "in").mkdir()
    texts = [f"Receipt\n{number} x Paper {number}.00\nTotal: {number}.00 EUR" for number in range(1, 31)]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), stores / "in" / "rows.parquet")
    (stores / "out").mkdir()
    (stores / "out").chmod(0o777)
    stack.execute("api", "tokenmill", "stores", "add", "acme", "documents", "file:///srv/stores/in")
    stack.execute("api", "tokenmill", "stores", "add", "acme", "results", "file:///srv/stores/out", "--writable")
    step = {
        "name": "totals",
        "source": {"store": "documents", "keys": "*.parquet"},
        "prompt": "{{ text }}",
        "model": "demo",
        "parameters": {"max_tokens": 8},
        "output": {"store": "results", "keys": "{step}/part-{n}.parquet"},
    }
    spec = tmp_path / "totals.yaml"
    spec.write_text(yaml.safe_dump({"name": "totals", "steps": [step]}))
    stack.tokenmill("pipelines", "apply", str(spec))
    stack.tokenmill("runs", "trigger", "totals", "--wait")
    (written,) = (stores / "out" / "totals").glob("*.parquet")
    assert pyarrow.parquet.read_table(written)["text"].to_pylist() == texts


def test_an_index_finds_a_passage(customer: Customer) -> None:
    index = customer.call("POST", "/indexes", json={"collection_id": collect(customer, NOTES)}).json()
    assert ended(customer, f"/indexes/{index['id']}")["status"] == "completed"
    found = customer.call("GET", f"/indexes/{index['id']}/search?query=when+does+the+ferry+leave").json()
    assert found["data"][0]["document"] == "boats.md"


@pytest.mark.parametrize("service", [*ROLES, "postgres", "redis"])
def test_a_killed_container_comes_back_and_all_goes_on(customer: Customer, service: str) -> None:
    stack = customer.stack
    until(lambda: is_open(stack), stack)
    batch_id = customer.submit(lines(600, max_tokens=16))
    until(lambda: stack.num_done(batch_id) > 0, stack)
    starts = stack.inspect(stack.ids(service)[0], "{{.State.StartedAt}}")
    stack.kill(service)
    until(lambda: stack.inspect(stack.ids(service)[0], "{{.State.StartedAt}}") != starts, stack)
    stack.until_ready()
    assert len(customer.answers(batch_id, num_lines=600)) == 600
    assert stack.audit() == "clean"


def is_open(stack: Composed) -> bool:
    try:
        return httpx.get(f"{stack.base_url}/models", headers=stack.client().auth_headers).status_code == 200
    except httpx.HTTPError:
        return False
