"""Measure the validation of a large batch: lines per second and the peak memory of the process.

Run as `python -m lab.validation --database-url postgresql://… [--lines 1000000]` against a migrated, disposable
database, or by `tokenmill bench queue` on its own. Only the validation itself is timed; the peak is of the whole
process.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks.arguments import natural
from jobs import partitions, served_models
from jobs.accounts import tenants
from jobs.batches.validation import validate_batch
from jobs.database import connect, sessions
from jobs.ids import new_id
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Batch, File

_PROMPT = "Summarise the following text in one sentence. " + "The quick brown fox jumps over the lazy dog. " * 6
_LINES_A_PART = 10_000


def input_parts(num_lines: int, *, model: str = "bench") -> Iterator[bytes]:
    """Yield, in parts, a file of valid chat lines of about 500 bytes."""
    body = {"model": model, "messages": [{"role": "user", "content": _PROMPT}], "max_tokens": 64}
    for start in range(0, num_lines, _LINES_A_PART):
        lines = (
            json.dumps({"custom_id": f"request-{n}", "method": "POST", "url": "/v1/chat/completions", "body": body})
            for n in range(start, min(start + _LINES_A_PART, num_lines))
        )
        yield ("\n".join(lines) + "\n").encode()


def make_batch(session: Session, storage: Storage, num_lines: int) -> str:
    """Store the input and insert its batch; return the batch's id."""
    tenant = tenants.create_tenant(session, new_id("bench"))
    served_models.put_model(session, "bench", "/models/bench", is_checked=True)
    now = datetime.now(UTC)
    partitions.ensure_result_partition(session, partitions.batch_day(now))
    file_id = new_id("file")
    size = storage.put(file_id, input_parts(num_lines))
    names = {"id": file_id, "object_key": file_id, "filename": "bench.jsonl", "purpose": "batch"}
    session.add(File(tenant_id=tenant.id, size_bytes=size, num_requests=num_lines, **names))
    session.flush()
    batch = Batch(
        id=new_id("batch"),
        tenant_id=tenant.id,
        input_file_id=file_id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        fingerprint=new_id("bench"),
        created_at=now,
        expires_at=now + timedelta(days=1),
    )
    session.add(batch)
    session.commit()
    return batch.id


def measure(database_url: str, num_lines: int) -> None:
    """Validate a batch of `num_lines` in this process, and print the measurements."""
    engine = connect(database_url)
    settings = Settings(max_batch_lines=num_lines)
    maker = sessions(engine)
    with tempfile.TemporaryDirectory() as folder, maker() as session:
        storage = Storage(Path(folder).as_uri())
        batch_id = make_batch(session, storage, num_lines)
        started, cpu = time.perf_counter(), time.process_time()
        outcome = validate_batch(maker, storage, batch_id, settings=settings)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        num_chunks = session.scalar(text("SELECT count(*) FROM chunk WHERE batch_id = :id"), {"id": batch_id})
    engine.dispose()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"validation: {num_lines} lines → {outcome}, {num_chunks} chunks: {seconds:.1f} s ({cpu_seconds:.1f} s CPU), "
        f"{num_lines / seconds:,.0f} lines/s, {num_lines / cpu_seconds:,.0f} a CPU second, peak {peak:.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--lines", type=natural, default=1_000_000)
    arguments = parser.parse_args()
    measure(arguments.database_url, arguments.lines)


if __name__ == "__main__":
    main()
