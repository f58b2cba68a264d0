"""A test of an upgrade from a release before 0.2.0: what has ended stays as it is, and what is in progress goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cli.embedded.sockets import free_port
from examples.make_papers import make_papers
from tests.deploy.containers.builders import NOTES, SCHEMA, collect, ended, lines
from tests.deploy.containers.composed import BEFORE, ROOT, Composed, until
from tests.e2e.builders import Customer, check_ledger

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

NUM_LINES = 1500
PRICES = ("--input-price", "0.15", "--output-price", "0.6")
STAGES = "SELECT count(*) FROM extraction_stage WHERE extraction_id = '{}' AND batch_id IS NOT NULL"
OPEN = "SELECT count(*) FROM {} WHERE ended_at IS NULL"


@pytest.fixture(scope="module")
def stack(daemon: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """A stack of the release before, with a price."""
    if not BEFORE.exists():
        pytest.skip("there is no image of a release before; run scripts/containers --before REVISION")
    folder = tmp_path_factory.mktemp("upgraded")
    stack = Composed(folder=folder, port=free_port(), settings={"TORCH": "before"}, file=BEFORE)
    stack.lay_out()
    try:
        stack.up()
        stack.add_tenant("acme")
        stack.execute("api", "tokenmill", "models", "set", "demo", *PRICES)
        yield stack
    finally:
        stack.run(stack.compose, "down", "--volumes", "--remove-orphans", "--timeout", "5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The ids of a batch, of an extraction and of an index."""

    batch_id: str
    extraction_id: str
    index_id: str


def extract(customer: Customer, *, num_papers: int) -> str:
    papers = {paper.name: paper.content for paper in make_papers(num_papers, seed=num_papers)}
    asked = {"collection_id": collect(customer, papers), "schema": SCHEMA, "model": "demo", "completion_window": "1h"}
    return str(customer.call("POST", "/extractions", json=asked).json()["id"])


def index(customer: Customer, *, num_copies: int) -> str:
    notes = {f"{number}-{name}": content for number in range(num_copies) for name, content in NOTES.items()}
    return str(customer.call("POST", "/indexes", json={"collection_id": collect(customer, notes)}).json()["id"])


def end_some(customer: Customer) -> Work:
    """Return work that has ended."""
    work = Work(
        batch_id=customer.submit(lines(40)),
        extraction_id=extract(customer, num_papers=4),
        index_id=index(customer, num_copies=1),
    )
    until_ended(customer, work, num_lines=40)
    return work


def leave_some(customer: Customer) -> Work:
    """Return work that is in progress, with every role stopped: a batch half done, an extraction of read documents."""
    stack, batch_id = customer.stack, customer.submit(lines(NUM_LINES, max_tokens=200, ignore_eos=True))
    until(lambda: stack.num_done(batch_id) > 0, stack)
    stack.stop("worker-cpu")
    extraction_id = extract(customer, num_papers=12)
    until(lambda: int(stack.query(STAGES.format(extraction_id))[0][0]) > 1, stack)
    stack.stop("prepare")
    index_id = index(customer, num_copies=20)
    stack.stop("api", "control", "dispatch")
    return Work(batch_id=batch_id, extraction_id=extraction_id, index_id=index_id)


def until_ended(customer: Customer, work: Work, *, num_lines: int) -> list[dict[str, Any]]:
    """Wait for the end of all three; return the output of the batch."""
    assert ended(customer, f"/extractions/{work.extraction_id}")["document_counts"]["failed"] == 0
    assert ended(customer, f"/indexes/{work.index_id}")["status"] == "completed"
    return customer.answers(work.batch_id, num_lines=num_lines)


def files_of(customer: Customer) -> dict[str, tuple[str, bytes]]:
    return {
        file.id: (file.filename, customer.client.files.content(file.id).read()) for file in customer.client.files.list()
    }


def bill_of(customer: Customer) -> dict[str, tuple[Any, ...]]:
    """Return lines, tokens and cost by batch."""
    usages = customer.call("GET", "/usage?group_by=batch").json()["data"]
    names = ("lines", "input_tokens", "output_tokens", "cost")
    return {usage["batch_id"]: tuple(usage[name] for name in names) for usage in usages}


def outcome_of(customer: Customer, work: Work) -> dict[str, Any]:
    """Return what a tenant reads of work that has ended."""
    batch = customer.client.batches.retrieve(work.batch_id)
    records = customer.call("GET", f"/extractions/{work.extraction_id}/results").text.splitlines()
    found = customer.call("GET", f"/indexes/{work.index_id}/search?query=when+does+the+ferry+leave").json()
    return {
        "batch": (batch.status, batch.output_file_id, batch.completed_at, batch.request_counts),
        "records": [(record["document"], record["fields"]) for record in map(json.loads, records)],
        "passages": [(passage["document"], passage["text"]) for passage in found["data"]],
    }


def results_of(stack: Composed, batch_id: str) -> set[tuple[str, ...]]:
    return set(stack.query(f"SELECT line_no, md5(line) FROM result WHERE batch_id = '{batch_id}'"))


def upgrade(stack: Composed) -> None:
    """Start the images of this checkout on the same volumes, as docs/operations.md says: all roles are stopped."""
    shutil.copy(ROOT / "docker-compose.yml", stack.folder)
    stack.up("--remove-orphans")


def test_an_upgrade_keeps_what_has_ended_and_continues_what_has_not(customer: Customer) -> None:
    stack = customer.stack
    old = end_some(customer)
    outcome, files, bill = outcome_of(customer, old), files_of(customer), bill_of(customer)
    assert outcome["records"]
    assert outcome["passages"]
    assert any(cost != "0" for *_, cost in bill.values())

    live = leave_some(customer)
    assert {name: stack.query(OPEN.format(name)) for name in ("extraction", "passage_index")} == {
        "extraction": [("1",)],
        "passage_index": [("1",)],
    }
    results = results_of(stack, live.batch_id)
    assert 0 < len(results) < NUM_LINES
    upgrade(stack)

    output = until_ended(customer, live, num_lines=NUM_LINES)
    assert len({answer["custom_id"] for answer in output}) == NUM_LINES
    check_ledger(stack, live.batch_id, output)
    assert results <= results_of(stack, live.batch_id)
    assert outcome_of(customer, old) == outcome
    assert files.items() <= files_of(customer).items()
    assert bill.items() <= bill_of(customer).items()
    assert stack.audit() == "clean"
