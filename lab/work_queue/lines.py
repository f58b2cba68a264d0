"""Measure the lines of a large batch: the cost of their index beside finalisation, pages, searches, and first use.

Run as `python -m lab.work_queue.lines [--lines 1000000]`: it starts a stack without workers, and writes the results of
a batch that the stack has validated. Finalisation runs in this process, in turn with and without the index, while the
stack's own control worker and dispatcher are suspended; the rest is asked over HTTP, by one client.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.arguments import natural
from jobs import served_models
from jobs.batches import finalisation
from jobs.chunks.recording import copy_rows
from jobs.database import connect, sessions
from jobs.files import line_index_key
from jobs.lines.line_index import LineIndexWriter
from jobs.lines.output_lines import error_line, output_line, response_id
from jobs.lines.responses import GeneratedChoice, Usage, chat_completion_body
from jobs.partitions import batch_day
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Batch, File
from lab.own_stack import OwnStack, own_stack, tokenmill_here
from lab.validation import input_parts
from lab.work_queue.percentiles import percentile

_REQUESTS = 200
_FAILED_EVERY = 100
_WORDS = [
    "order",
    "invoice",
    "crate",
    "apple",
    "warehouse",
    "Delft",
    "March",
    "returned",
    "wet",
    "thirteen",
    "fourteen",
    "supplier",
    "paid",
    "late",
]
_ABSENT = "a text that is nowhere"
_UNLIMITED = {"TOKENMILL_TENANT_REQUESTS_PER_MINUTE": "1000000", "TOKENMILL_TENANT_OPEN_BATCHES": "100"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A batch on a stack."""

    stack: OwnStack
    maker: sessionmaker[Session]
    storage: Storage
    batch_id: str
    num_lines: int


class _NoIndex:
    """Stands in for the writer of an index."""

    def __init__(self, write: Callable[[bytes], object]) -> None: ...
    def add(self, *_: object) -> None: ...
    def finish(self) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=natural, default=1_000_000)
    parser.add_argument("--rounds", type=natural, default=3, help="finalisations with the index, and as many without")
    options = parser.parse_args()
    num_lines = options.lines
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    with own_stack(tokenmill_here(), "--workers", "0", environment=_UNLIMITED) as stack:
        engine = connect(stack.database_url)
        with sessions(engine).begin() as session:
            served_models.put_model(session, "demo", "/models/demo", is_checked=True)
        batch_id = _validated(stack, num_lines)
        measured = Measured(
            stack=stack,
            maker=sessions(engine),
            storage=Storage((stack.data_dir / "objects").as_uri()),
            batch_id=batch_id,
            num_lines=num_lines,
        )
        with httpx.Client(base_url=stack.base_url, headers=stack.headers, timeout=600) as client:
            with _suspended(stack):
                _answer(measured)
                _measure_pages(measured, client, of="running")
                _measure_finalisation(measured, num_rounds=options.rounds)
            _measure_pages(measured, client, of="ended")
            _measure_searches(measured, client)
            _measure_first_use(measured, client)
        engine.dispose()
    print(f"load {os.getloadavg()[0]:.1f} after", flush=True)


def _validated(stack: OwnStack, num_lines: int) -> str:
    """Submit a batch and wait until it could run."""
    client = stack.client()
    content = b"".join(input_parts(num_lines, model="demo"))
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while (batch := client.batches.retrieve(batch.id)).status == "validating":
        time.sleep(0.2)
    assert batch.status == "in_progress", batch
    return batch.id


@contextmanager
def _suspended(stack: OwnStack) -> Iterator[None]:
    """Keep the stack's own processes from finalising the batch."""
    roles = [stack.role(name) for name in ("control", "dispatch")]
    for role in roles:
        role.suspend()
    try:
        yield
    finally:
        for role in roles:
            role.resume()


def _answer(measured: Measured) -> None:
    """Write a result for each line."""
    with measured.maker.begin() as session:
        batch = session.get_one(Batch, measured.batch_id)
        copy_rows(session, _COPY, _results(batch, measured.num_lines))
        num_failed = len(range(0, measured.num_lines, _FAILED_EVERY))
        counts = {"completed": measured.num_lines - num_failed, "failed": num_failed, "id": batch.id}
        session.execute(text(_COUNTS), counts)
        session.execute(text("UPDATE chunk SET state = 'done' WHERE batch_id = :id"), {"id": batch.id})
    with measured.maker() as session:
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"}).execute(text("ANALYZE result"))


def _results(batch: Batch, num_lines: int) -> Iterator[tuple[object, ...]]:
    random.seed(1)
    day = batch_day(batch.created_at)
    for line_no in range(num_lines):
        is_error = line_no % _FAILED_EVERY == 0
        line = _failure(batch.id, line_no) if is_error else _success(batch.id, line_no)
        yield day, batch.id, line_no, line_no + 1, None if is_error else 200, is_error, 0, 0, 0, line


def _failure(batch_id: str, line_no: int) -> bytes:
    message = "this line needs 9,214 tokens and the model's context has 8,192"
    return error_line(batch_id, line_no, f"request-{line_no}", code="context_length_exceeded", message=message)


def _success(batch_id: str, line_no: int) -> bytes:
    choice = GeneratedChoice(index=0, text=" ".join(random.choices(_WORDS, k=40)), finish_reason="stop")
    usage = Usage(prompt_tokens=70, completion_tokens=48)
    body = chat_completion_body(
        response_id("chatcmpl", batch_id, line_no), "demo", created=1_764_000_000, choices=[choice], usage=usage
    )
    return output_line(batch_id, line_no, f"request-{line_no}", status_code=200, body=body)


# --- finalisation ----------------------------------------------------------------------------------------------------


def _measure_finalisation(measured: Measured, *, num_rounds: int) -> None:
    times: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    writers = [("without", _NoIndex), ("with", LineIndexWriter)]
    for number in range(num_rounds):
        for name, writer in writers[:: -1 if number % 2 else 1]:  # each of the two comes first in half of the rounds
            finalisation.__dict__["LineIndexWriter"] = writer
            times[name].append(_finalise(measured))
    finalisation.__dict__["LineIndexWriter"] = LineIndexWriter
    _finalise(measured)  # its index is what the rest reads
    middle = {name: [median(each[side] for each in taken) for side in (0, 1)] for name, taken in times.items()}
    best = {name: [min(each[side] for each in taken) for side in (0, 1)] for name, taken in times.items()}
    for name, taken in times.items():
        print(f"finalisation {name} index: " + ", ".join(f"{wall:.2f} s ({cpu:.2f} s CPU)" for wall, cpu in taken))
    more = [best["with"][side] / best["without"][side] - 1 for side in (0, 1)]
    print(f"  the index adds {more[0]:.1%} of elapsed and {more[1]:.1%} of processor time (the least of each)")
    more = [middle["with"][side] / middle["without"][side] - 1 for side in (0, 1)]
    print(f"  of the medians {more[0]:.1%} and {more[1]:.1%}")
    sizes = {name: path.stat().st_size for name, path in _paths(measured).items()}
    share = sizes["index"] / (sizes["output"] + sizes["errors"])
    print(f"  sizes: {sizes}, the index {share:.1%} of the files", flush=True)


def _finalise(measured: Measured) -> tuple[float, float]:
    """Return elapsed and own processor seconds."""
    with measured.maker.begin() as session:
        session.execute(text(_FINALIZING), {"id": measured.batch_id, "now": datetime.now(UTC)})
    began_at, cpu = time.perf_counter(), time.process_time()
    outcome = finalisation.finalise_batch(measured.maker, measured.storage, measured.batch_id, settings=Settings())
    assert outcome == "completed", outcome
    return time.perf_counter() - began_at, time.process_time() - cpu


def _paths(measured: Measured) -> dict[str, Path]:
    with measured.maker() as session:
        batch = session.get_one(Batch, measured.batch_id)
        output, errors = (
            session.get_one(File, each).object_key for each in (batch.output_file_id, batch.error_file_id)
        )
    keys = {"output": output, "errors": errors, "index": line_index_key(output)}
    return {name: measured.stack.data_dir / "objects" / key for name, key in keys.items()}


# --- reading ---------------------------------------------------------------------------------------------------------


def _measure_pages(measured: Measured, client: httpx.Client, *, of: str) -> None:
    path = f"/batches/{measured.batch_id}/lines"
    failed: dict[str, Any] = {"failed": "true"}
    queries: dict[str, dict[str, Any]] = {
        "any 50 lines": {},
        "50 failed lines": failed,
        "50 lines of a code": {"code": "context_length_exceeded"},
        "200 failed lines": failed | {"limit": 200},
        "a code that no line has": {"code": "other"},
    }
    for name, query in queries.items():
        _print_times(f"{of}: {name}", client, measured.num_lines, path=path, query=query)
    _print_times(f"{of}: one line beside its request", client, measured.num_lines, path=path, query=None)


def _print_times(name: str, client: httpx.Client, num_lines: int, *, path: str, query: dict[str, Any] | None) -> None:
    """Ask for pages from random lines on, or for random lines if there is no query."""
    random.seed(2)
    times = []
    for _ in range(_REQUESTS):
        after = random.randrange(num_lines)
        began_at = time.perf_counter()
        answer = (
            client.get(f"{path}/{after + 1}") if query is None else client.get(path, params=query | {"after": after})
        )
        answer.raise_for_status()
        times.append(time.perf_counter() - began_at)
    times.sort()
    shown = ", ".join(f"p{share * 100:.0f} {percentile(times, share) * 1e3:.0f} ms" for share in (0.5, 0.99))
    print(f"{name}: {shown}", flush=True)


def _measure_searches(measured: Measured, client: httpx.Client) -> None:
    num_bytes = sum(path.stat().st_size for name, path in _paths(measured).items() if name != "index")
    for name, wanted in (
        ("a text that is nowhere", _ABSENT),
        ("a text that 1 % of the lines have", "9,214 tokens"),
        ("the name of a member", "completion_tokens"),
        ("a role, for which each line is parsed", "assistant"),
    ):
        began_at = time.perf_counter()
        answer = client.get(f"/batches/{measured.batch_id}/lines/grep", params={"text": wanted, "limit": 10_000})
        seconds = time.perf_counter() - began_at
        hits = answer.raise_for_status().text.count('"hit":{')
        print(f"search for {name}: {num_bytes / 1e6 / seconds:,.0f} MB/s, {hits:,} hits in {seconds:.2f} s", flush=True)


def _measure_first_use(measured: Measured, client: httpx.Client) -> None:
    _paths(measured)["index"].unlink()
    began_at = time.perf_counter()
    client.get(f"/batches/{measured.batch_id}/lines").raise_for_status()
    print(f"first use without an index: {time.perf_counter() - began_at:.2f} s", flush=True)


_COPY = """
    COPY result (batch_day, batch_id, line_no, result_no, status_code, is_error, input_tokens, cached_tokens,
        output_tokens, line) FROM STDIN
"""

_COUNTS = "UPDATE batch SET num_completed = :completed, num_failed = :failed WHERE id = :id"

_FINALIZING = """
    UPDATE batch SET state = 'finalizing', outcome = 'completed', finalizing_at = :now, completed_at = NULL,
        output_file_id = NULL, error_file_id = NULL, claimed_until = NULL, claimed_by = NULL WHERE id = :id
"""

if __name__ == "__main__":
    main()
