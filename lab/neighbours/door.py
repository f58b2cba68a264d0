"""Measure how long one tenant's requests take while others overload the API.

python -m lab.neighbours.door [--tokenmill OTHER/.venv/bin/tokenmill] [--python-path OTHER] [--attacks bodies]

Starts its own stack, of any revision. One tenant, the neighbour, lists its batches twenty times a second, each time on
a new connection; its times alone and under each attack are printed. Another process attacks.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks.arguments import names, natural
from lab.own_stack import OwnStack, own_stack

_PERIOD_SECONDS = 0.05
"""Interval between the starts of the neighbour's requests."""
_REFILL_SECONDS = 6.5
"""Until a bucket of requests is refilled for the next round."""
_HALF_SECONDS = 4.0
"""How long incomplete bodies are kept open."""
_BODY_BYTES = 8 * 1024 * 1024 - 1024
_MAKE_TENANT = """
    WITH made AS (INSERT INTO tenant (id, name) VALUES (%s, %s) RETURNING id),
    paid AS (INSERT INTO budget (tenant_id) SELECT id FROM made)
    INSERT INTO api_key (id, tenant_id, key_hash, hint, scopes) SELECT %s, id, %s, %s, '{submit,read}' FROM made
    RETURNING id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The address and the keys of the API."""

    host: str
    port: int
    keys: tuple[str, ...]


def get(key: str) -> bytes:
    return f"GET /v1/batches HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode()


def post(key: str, body: bytes, *, announced: int, path: str = "/v1/batches") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {announced}\r\n\r\n".encode() + body


async def ask(target: Target, request: bytes, *, wait_seconds: float = 120.0) -> None:
    """Send a request on a new connection and wait for the start of its answer, at most `wait_seconds`."""
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection(target.host, target.port)
        try:
            writer.write(request)
            async with asyncio.timeout(wait_seconds):
                await reader.read(100)
        finally:
            writer.transport.abort()


async def requests(target: Target) -> None:
    """Send 600 concurrent requests with one key, as often as its bucket allows."""
    await asyncio.gather(*(ask(target, get(target.keys[0])) for _ in range(600)))
    await asyncio.sleep(_REFILL_SECONDS)


async def strangers(target: Target) -> None:
    """Send 600 concurrent requests with unknown keys."""
    await asyncio.gather(*(ask(target, get("tm-" + secrets.token_urlsafe(32))) for _ in range(600)))


async def bodies(target: Target) -> None:
    """Send 8 MB of unknown parameters with each of four tenants' keys."""
    body = b"{" + b",".join(b'"%d":1' % number for number in range(600_000))
    body = body[: body.rindex(b",", 0, _BODY_BYTES)] + b"}"
    await asyncio.gather(*(ask(target, post(key, body, announced=len(body))) for key in target.keys))


async def halves(target: Target) -> None:
    """Start 1,200 bodies with one key, and never finish them."""
    half = post(target.keys[0], b'{"endpoint":', announced=30_000)
    await asyncio.gather(*(ask(target, half, wait_seconds=_HALF_SECONDS) for _ in range(1_200)))
    await asyncio.sleep(_REFILL_SECONDS)


ATTACKS: Mapping[str, Callable[[Target], Awaitable[None]]] = {
    "requests": requests,
    "strangers": strangers,
    "bodies": bodies,
    "halves": halves,
}


def attack_for_ever(name: str, target: Target) -> None:
    async def attack() -> None:
        while True:
            await ATTACKS[name](target)

    asyncio.run(attack())


@contextmanager
def attacking(name: str, target: Target) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=attack_for_ever, args=(name, target), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


class Neighbour:
    """One tenant's client, which requests the first page of its batches."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._times: list[float] = []

    def times(self, seconds: float) -> list[float]:
        """Return the durations of requests that start every PERIOD_SECONDS, independently of each other."""
        self._times = []
        asyncio.run(self._ask_for(seconds))
        return self._times

    async def _ask_for(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(int(seconds / _PERIOD_SECONDS)):
                tasks.create_task(self._time())
                await asyncio.sleep(_PERIOD_SECONDS)

    async def _time(self) -> None:
        started_at = time.monotonic()
        reader, writer = await asyncio.open_connection(self._target.host, self._target.port)
        writer.write(get(self._target.keys[0]))
        status = await reader.readline()
        self._times.append(time.monotonic() - started_at)
        writer.transport.abort()
        if b" 200 " not in status:
            raise SystemExit(f"the neighbour got {status!r}")


def described(times: list[float]) -> dict[str, float]:
    """Return statistics in milliseconds."""
    ordered = sorted(times)
    return {
        "number": len(times),
        "median": round(1000 * statistics.median(ordered), 1),
        "p99": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 1),
        "longest": round(1000 * ordered[-1], 1),
    }


def new_tenant(stack: OwnStack, name: str) -> str:
    """Insert a tenant into the schema of any revision; return its key."""
    key = "tm-" + secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    stack.query(_MAKE_TENANT, f"tenant_{name}", name, f"key_{name}", digest, key[:10])
    return key


def measure(stack: OwnStack, attacks: list[str], *, seconds: float) -> None:
    address = urlsplit(stack.base_url)
    assert address.hostname is not None
    assert address.port is not None
    neighbour, *others = (new_tenant(stack, name) for name in ("neighbour", "first", "second", "third", "fourth"))
    client = Neighbour(Target(host=address.hostname, port=address.port, keys=(neighbour,)))
    target = Target(host=address.hostname, port=address.port, keys=tuple(others))
    stack.query("UPDATE tenant SET max_requests_per_minute = 1000000 WHERE id = 'tenant_neighbour' RETURNING id")
    client.times(2.0)  # warm-up
    for name in attacks:
        alone = described(client.times(seconds / 2))
        with attacking(name, target):
            beside = described(client.times(seconds))
        bound = round(2 * alone["p99"] + 100, 1)
        figures = {"attack": name, "alone": alone, "beside": beside, "goal_p99": bound, "load": os.getloadavg()[0]}
        print(json.dumps(figures), flush=True)
        time.sleep(_REFILL_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.partition("\n")[0])
    parser.add_argument("--tokenmill", default="tokenmill", help="tokenmill executable of the revision to measure")
    parser.add_argument("--python-path", help="PYTHONPATH of that revision, if it is not installed")
    parser.add_argument("--attacks", type=names, default=list(ATTACKS), help=", ".join(ATTACKS))
    parser.add_argument("--seconds", type=natural, default=20, help="duration of each attack; half of it alone")
    arguments = parser.parse_args()
    environment = {} if arguments.python_path is None else {"PYTHONPATH": arguments.python_path}
    with own_stack(arguments.tokenmill, environment=environment) as stack:
        measure(stack, arguments.attacks, seconds=arguments.seconds)


if __name__ == "__main__":
    main()
