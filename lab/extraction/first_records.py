"""Measure when the first records of an extraction are there, and what each document costs beside the model.

python -m lab.extraction first_records [--documents 100,1000] [--slow 0.01] [--tokenmill OTHER/.venv/bin/tokenmill]

Starts its own stack, of any revision, with an engine that computes nothing. Each paper has one page; of them a share is
replaced by a file that takes a reader's whole minute.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx
import psutil

from benchmarks.arguments import fraction, naturals
from examples.make_papers import make_papers
from lab import no_compute
from lab.ends.expected_ends import ExpectedEnds
from lab.extraction import worst_files
from lab.own_stack import OwnStack, own_stack
from lab.service_calls import get, make_collection, post

_SCHEMA = {"type": "object", "properties": {name: {"type": "string"} for name in ("vendor", "number", "total")}}
_POLL_SECONDS = 0.25
_ROLES = ("control", "prepare", "dispatch")
_FIRST_READ = """
    SELECT extract(epoch FROM min(result.created_at)) FROM result JOIN batch ON batch.id = result.batch_id
    WHERE batch.endpoint = '/v1/documents/read' AND batch.metadata ->> 'extraction_id' = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an extraction took."""

    num_documents: int
    first_record_seconds: float
    """From the first document that was read."""
    seconds: float
    ended_at: int
    """In Unix seconds."""
    cpu: Mapping[str, float]
    """Milliseconds a document, by role."""
    control_bytes: float
    """Read and written by the control worker, a document."""
    ends: ExpectedEnds
    """What it told of its end, at each look."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each number of documents."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction first_records", description=__doc__)
    parser.add_argument("--documents", type=naturals, default=[100, 1000])
    parser.add_argument("--slow", type=fraction, default=0.01, help="share of files that take a reader's whole minute")
    parser.add_argument("--tokenmill", default="tokenmill", help="tokenmill executable of the revision to measure")
    arguments = parser.parse_args(argv)
    environment = no_compute.environment(step_seconds=0.0)
    print(
        "documents  first record  all        CPU ms a document: control prepare dispatch   control's bytes a document"
    )
    with (
        own_stack(arguments.tokenmill, environment=environment) as stack,
        httpx.Client(base_url=stack.base_url, headers=stack.headers, timeout=600) as client,
    ):
        extract(stack, client, num_documents=1, slow=0.0)  # its processes start with the first document
        for num_documents in arguments.documents:
            show(extract(stack, client, num_documents=num_documents, slow=arguments.slow))
    print(f"load average of a minute: {os.getloadavg()[0]:.1f}")
    return 0


def show(outcome: Outcome) -> None:
    cpu = "".join(f"{outcome.cpu[role]:>9.1f}" for role in _ROLES)
    times = f"{outcome.first_record_seconds:>10.1f} s  {outcome.seconds:>6.1f} s"
    print(f"{outcome.num_documents:>9,}  {times}{cpu:>49}   {outcome.control_bytes:>26,.0f}", flush=True)
    if outcome.ends.looks:
        print(f"{'':>9}  expected end: {outcome.ends.compared(outcome.ended_at)}", flush=True)


def extract(stack: OwnStack, client: httpx.Client, *, num_documents: int, slow: float) -> Outcome:
    """Extract so many papers and return what it took."""
    collection_id = make_collection(client, files(num_documents, slow))
    before = used(stack) if num_documents > 1 else None
    body = {"collection_id": collection_id, "schema": _SCHEMA, "model": "demo", "again": False}
    started = time.monotonic()
    extraction_id = str(post(client, "/extractions", body)["id"])
    first_at, ends = None, ExpectedEnds()
    while (now := get(client, f"/extractions/{extraction_id}").json())["ended_at"] is None:
        ends.note(now)
        if first_at is None and get(client, f"/extractions/{extraction_id}/results?limit=1").text:
            first_at = time.time()
        time.sleep(_POLL_SECONDS)
    seconds = time.monotonic() - started
    first_read = float(stack.query(_FIRST_READ, extraction_id))
    after = used(stack)
    return Outcome(
        num_documents=num_documents,
        first_record_seconds=(first_at or time.time()) - first_read,
        seconds=seconds,
        cpu={role: 1000 * (after[role] - before[role]) / num_documents for role in _ROLES} if before else {},
        control_bytes=(after["bytes"] - before["bytes"]) / num_documents if before else 0.0,
        ends=ends,
        ended_at=now["ended_at"],
    )


def files(num_documents: int, slow: float) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents; the slow files are spread evenly."""
    num_slow = round(slow * num_documents)
    every = num_documents // num_slow if num_slow else num_documents + 1
    for number, paper in enumerate(make_papers(num_documents, seed=num_documents), start=1):
        is_slow = number % every == 0
        yield (f"{number}.pdf", worst_files.form_of_itself()) if is_slow else (f"{number}-{paper.name}", paper.content)


def used(stack: OwnStack) -> dict[str, float]:
    """Return the CPU seconds of each role with its children, and the bytes that the control worker has moved."""
    seconds = {role: cpu_seconds(stack.role(role)) for role in _ROLES}
    counters = stack.role("control").io_counters()
    return {**seconds, "bytes": counters.read_chars + counters.write_chars}


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    own = times.user + times.system + times.children_user + times.children_system
    return float(own + sum(cpu_seconds(child) for child in process.children()))


if __name__ == "__main__":
    raise SystemExit(main())
