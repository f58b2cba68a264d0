"""Compare the expected ends of runs and indexes with the ends that came.

python -m lab.ends.flow_ends [--rows 2000] [--documents 300] [--tokenmill OTHER/.venv/bin/tokenmill]

Starts its own stack, of any revision: an engine that answers each row within a few seconds and computes nothing, and a
small embedding model. A run has two steps over so many rows, an index so many papers of one page.
`tokenmill bench extraction first_records` does the same for extractions.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.arguments import naturals
from examples.make_papers import make_papers
from features.pipelines import stores
from jobs.database import connect, sessions, transaction
from lab import no_compute
from lab.chaos.flows.embedder import write_embedder
from lab.ends.expected_ends import ExpectedEnds
from lab.own_stack import OwnStack, own_stack
from lab.service_calls import get, make_collection, post

_POLL_SECONDS = 0.25
_START_SECONDS = 120
_STEP_SECONDS, _TOKENS_A_STEP, _SEATS = 0.1, 1, 64
"""Of the engine: an answer of some 40 tokens takes 4 s, and 64 rows are answered at once."""
_EMBEDDER, _RESULTS = "embedder", "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each flow."""
    parser = argparse.ArgumentParser(prog="python -m lab.ends.flow_ends", description=__doc__)
    parser.add_argument("--rows", type=naturals, default=[200, 2000], help="rows of each run")
    parser.add_argument("--documents", type=naturals, default=[300, 1000], help="documents of each index")
    parser.add_argument("--tokenmill", default="tokenmill", help="tokenmill executable of the revision to measure")
    arguments = parser.parse_args(argv)
    environment = no_compute.environment(step_seconds=_STEP_SECONDS, tokens_a_step=_TOKENS_A_STEP, num_seats=_SEATS)
    with (
        own_stack(arguments.tokenmill, environment=environment) as stack,
        embedding_worker(stack, arguments.tokenmill),
        result_store(stack),
        httpx.Client(base_url=stack.base_url, headers=stack.headers, timeout=600) as client,
    ):
        for num_rows in arguments.rows:
            show(f"run of {num_rows:,} rows", *run(stack, client, num_rows))
        for num_documents in arguments.documents:
            show(f"index of {num_documents:,} papers", *index(client, num_documents))
    print(f"load average of a minute: {os.getloadavg()[0]:.1f}")
    return 0


def show(name: str, seconds: float, comparison: str) -> None:
    print(f"{name:<24} {seconds:>7.1f} s  {comparison}", flush=True)


@contextmanager
def embedding_worker(stack: OwnStack, tokenmill: str) -> Iterator[None]:
    """Run a worker with an embedding model beside the stack."""
    with tempfile.TemporaryDirectory(prefix="tm-embedder-") as folder:
        model = write_embedder(Path(folder) / _EMBEDDER)
        command = [tokenmill, "worker", "--model", _EMBEDDER, "--path", str(model)]
        process = subprocess.Popen(command, env=stack.role("control").environ(), stdout=subprocess.DEVNULL)
        with process:
            try:
                wait_for_model(stack)
                yield
            finally:
                process.terminate()


@contextmanager
def result_store(stack: OwnStack) -> Iterator[None]:
    """Register a folder to which runs write."""
    with tempfile.TemporaryDirectory(prefix="tm-results-") as folder:
        engine = connect(stack.database_url, connections=1)
        with transaction(sessions(engine)) as session:
            tenant_id = str(stack.query("SELECT id FROM tenant"))
            stores.add_store(session, tenant_id, _RESULTS, f"file://{folder}", options={}, is_writable=True)
        engine.dispose()
        yield


def wait_for_model(stack: OwnStack) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while not stack.query("SELECT count(*) FROM worker WHERE model = %s AND stopped_at IS NULL", _EMBEDDER):
        if time.monotonic() > give_up_at:
            raise SystemExit("the worker of the embedding model did not start; its messages are above")
        time.sleep(_POLL_SECONDS)


def run(stack: OwnStack, client: httpx.Client, num_rows: int) -> tuple[float, str]:
    """Follow a run of two steps over the answers of a batch of so many lines."""
    batches = stack.batches()
    batch_id = batches.submit(num_rows, max_tokens=1, priority="normal")
    batches.wait_for(batch_id, "completed", poll_seconds=_POLL_SECONDS)
    text = "{{ custom_id }} is a visitor of the old town who liked the harbour, the market and the bridge best."
    output = {"store": _RESULTS, "keys": "{pipeline}/part-{n}.jsonl"}
    steps = [
        {"name": "first", "source": {"batch": batch_id}, "prompt": text, "model": "demo"},
        {"name": "second", "source": {"step": "first"}, "prompt": f"{text} Again.", "model": "demo", "output": output},
    ]
    name = f"rows-{num_rows}"
    post(client, "/pipelines", {"name": name, "steps": steps})
    return followed(client, "/runs", post(client, "/runs", {"pipeline": name}))


def index(client: httpx.Client, num_documents: int) -> tuple[float, str]:
    """Follow the building of an index of so many papers that were not read before."""
    papers = make_papers(num_documents, seed=num_documents)
    collection_id = make_collection(client, ((paper.name, paper.content) for paper in papers))
    body = {"collection_id": collection_id, "embedding_model": _EMBEDDER}
    return followed(client, "/indexes", post(client, "/indexes", body))


def followed(client: httpx.Client, path: str, flow: Mapping[str, Any]) -> tuple[float, str]:
    """Return the seconds until a flow has ended, and what it expected meanwhile. Exits where it failed."""
    began, ends = time.monotonic(), ExpectedEnds()
    while flow["ended_at"] is None:
        ends.note(flow)
        time.sleep(_POLL_SECONDS)
        flow = get(client, f"{path}/{flow['id']}").json()
    if flow["status"] not in ("succeeded", "completed", "ready"):
        raise SystemExit(f"{path}/{flow['id']} ended as {flow['status']}: {flow['reason']}")
    return time.monotonic() - began, ends.compared(flow["ended_at"])


if __name__ == "__main__":
    raise SystemExit(main())
