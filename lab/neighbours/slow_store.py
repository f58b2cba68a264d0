"""Measure how an object store that answers 503, or not at all, delays work that does not need it.

python -m lab.neighbours.slow_store [--tokenmill OTHER/.venv/bin/tokenmill]

Starts its own stack, of any revision, on a store that fails on demand. A chunk is lost whose input must be read to
decide about it; meanwhile others need the dispatcher's lock, the batch's and its tenant's rows, and a cancellation.
Then 18 downloads hang.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg

from benchmarks.arguments import natural
from lab.own_stack import OwnStack, own_stack
from lab.s3_server import Mood, S3Server, s3_server

_NUM_BULK = 448
"""Lines of seven chunks: one more than a worker has slots."""
_NUM_DOWNLOADS = 18
_HAS_STARTED_FENCE = "SELECT count(*) FROM information_schema.columns WHERE column_name = 'started_fence'"
_LEADS = "SELECT pg_try_advisory_xact_lock(hashtextextended('dispatcher', 0))"
_IDLE = (
    "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND now() - state_change > '1 second'"
)


class Stopwatch:
    """Runs functions concurrently and prints the duration of each, at most `limit_seconds`."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds

    def run(self, works: Mapping[str, Callable[[float], str]]) -> None:
        """Call each function with its time limit; print its result and its duration."""
        with ThreadPoolExecutor(len(works)) as executor:
            for line in executor.map(lambda item: self._timed(*item), works.items()):
                print(line, flush=True)

    def _timed(self, name: str, work: Callable[[float], str]) -> str:
        started_at = time.monotonic()
        try:
            result = work(self._limit_seconds)
        except (TimeoutError, httpx.TimeoutException, psycopg.errors.LockNotAvailable):
            result = "gave up"
        return f"  {name}: {time.monotonic() - started_at:.2f} s {result}"


def lose_suspect(stack: OwnStack, batch_id: str) -> None:
    """Change a waiting chunk to one that has been leased and lost twice."""
    started = ", started_fence = fence + 1" if stack.query(_HAS_STARTED_FENCE) else ""
    stack.query(
        "UPDATE chunk SET state = 'leased', fence = fence + 1, losses = 1, worker_id = 'gone', "
        f"lease_until = clock_timestamp(){started} WHERE id = "
        "(SELECT max(id) FROM chunk WHERE batch_id = %s AND state = 'ready') RETURNING id",
        batch_id,
    )


def measure_locks(stack: OwnStack, s3: S3Server, *, mood: Mood, limit_seconds: float) -> None:
    """Print how long the dispatcher's lock, a batch's rows and its cancellation take."""

    def lead(seconds: float) -> str:
        deadline = time.monotonic() + seconds
        while not stack.query(_LEADS):
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.02)
        return ""

    def lock_rows(seconds: float) -> str:
        with psycopg.connect(stack.database_url) as connection:
            connection.execute(f"SET LOCAL lock_timeout = '{seconds:.0f}s'")
            connection.execute("SELECT FROM batch WHERE id = %s FOR UPDATE", (batch_id,))
            connection.execute(
                "SELECT FROM budget WHERE tenant_id = (SELECT tenant_id FROM batch WHERE id = %s) FOR UPDATE",
                (batch_id,),
            )
            connection.rollback()
        return ""

    def cancel(seconds: float) -> str:
        url = f"{stack.base_url}/batches/{batch_id}/cancel"
        return f"(status {httpx.post(url, headers=stack.headers, timeout=seconds).status_code})"

    batches = stack.batches()
    batch_id = batches.submit(_NUM_BULK, max_tokens=450, priority="normal")
    counts = f"SELECT count(*) FROM chunk WHERE batch_id = '{batch_id}' AND state = "
    while stack.query(f"{counts}'leased'") < 6 or stack.query(f"{counts}'ready'") < 1:
        time.sleep(0.1)
    time.sleep(2)  # until the claimed chunks are read
    num_reads = s3.num_requests("GET")
    s3.trouble(mood, methods="GET HEAD")
    lose_suspect(stack, batch_id)
    s3.wait_for_request("GET", num_requests=num_reads + 1)
    works = {"the dispatcher's lock": lead, "the rows that a flush locks": lock_rows, "a cancellation": cancel}
    Stopwatch(limit_seconds).run(works)
    s3.recover()
    if batches.is_running(batch_id):
        batches.cancel(batch_id)
    else:
        batches.wait_for(batch_id, "cancelled")


def measure_downloads(stack: OwnStack, s3: S3Server, *, limit_seconds: float) -> None:
    """Print how long `/v1/batches` takes while downloads hang, and the answer of `/readyz`."""
    file_id = httpx.post(
        f"{stack.base_url}/files",
        headers=stack.headers,
        files={"purpose": (None, b"batch"), "file": ("a.jsonl", b"0123456789")},
    ).json()["id"]

    def get(path: str, seconds: float) -> str:
        return f"(status {httpx.get(path, headers=stack.headers, timeout=seconds).status_code})"

    def download() -> None:
        with (
            httpx.Client() as client,
            client.stream(
                "GET", f"{stack.base_url}/files/{file_id}/content", headers=stack.headers, timeout=3 * limit_seconds
            ) as response,
        ):
            for _ in response.iter_raw():
                pass

    s3.trouble(Mood.HANG, methods="GET HEAD")
    downloads = [threading.Thread(target=_quietly, args=(download,)) for _ in range(_NUM_DOWNLOADS)]
    for thread in downloads:
        thread.start()
    s3.wait_for_hanging()
    time.sleep(3)  # until all requests have arrived
    print(f"  connections idle in a transaction for over a second: {stack.query(_IDLE)}", flush=True)
    root = stack.base_url.removesuffix("/v1")
    Stopwatch(limit_seconds).run(
        {
            "/v1/batches": lambda seconds: get(f"{stack.base_url}/batches", seconds),
            "/readyz": lambda seconds: get(f"{root}/readyz", seconds),
        }
    )
    s3.recover()
    for thread in downloads:
        thread.join()


def _quietly(work: Callable[[], None]) -> None:
    try:
        work()
    except httpx.HTTPError:
        return  # the download may fail


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.partition("\n")[0])
    parser.add_argument("--tokenmill", default="tokenmill", help="tokenmill executable of the revision to measure")
    parser.add_argument("--limit-seconds", type=natural, default=150, help="time limit of a measurement")
    arguments = parser.parse_args()
    with s3_server() as s3:
        environment = {**s3.environment, "TOKENMILL_STORAGE_URL": s3.url, "TOKENMILL_EXTERNAL_SERVERS": "1"}
        with own_stack(arguments.tokenmill, environment=environment) as stack:
            for mood, behaviour in ((Mood.REFUSE, "answers 503"), (Mood.HANG, "hangs")):
                print(f"the store {behaviour}:", flush=True)
                measure_locks(stack, s3, mood=mood, limit_seconds=arguments.limit_seconds)
            print(f"{_NUM_DOWNLOADS} downloads hang:", flush=True)
            measure_downloads(stack, s3, limit_seconds=arguments.limit_seconds)


if __name__ == "__main__":
    main()
