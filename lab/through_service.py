"""Measure what a server of somebody else loses by standing behind the service.

python -m lab.through_service --url http://127.0.0.1:8000/v1 [--pairs 5] [--requests 64] [--tokenmill OTHER]

Sends requests like W1 to a running server, which must be idle otherwise: as a bare client, and through a stack that it
starts. Pairs change their order, so that a machine that becomes slower slows both. It prints tokens per second of each,
their ratio, and the processor time of a line for each role of the stack, which other work does not change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import httpx

from benchmarks.arguments import natural
from benchmarks.processor_time import spent
from benchmarks.service import Batches
from lab.make_workload import LIKE, random_requests
from lab.own_stack import OwnStack, own_stack

_ENDPOINT: Literal["/v1/completions"] = "/v1/completions"
_FIRST_TOKEN_ID = 16
"""Above the special tokens of most vocabularies."""
_ANSWER_SECONDS = 3600.0
_POLL_SECONDS = 0.2

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way through all requests."""

    num_tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


def bodies_like_w1(num: int, *, vocab_size: int, context: int, seed: int) -> list[Body]:
    """Return greedy requests of W1's lengths whose answers end at their limits, as far as the context has room."""
    lengths = replace(LIKE["W1"], num_requests=num)
    bodies: list[Body] = []
    for request in random_requests(lengths, vocab_size=vocab_size - _FIRST_TOKEN_ID, seed=seed):
        prompt = [_FIRST_TOKEN_ID + token_id for token_id in request["prompt_token_ids"]][: context // 2]
        limit = min(request["max_tokens"], context - 1 - len(prompt))
        bodies.append({"prompt": prompt, "max_tokens": limit, "ignore_eos": True, "temperature": 0.0})
    return bodies


async def bare(url: str, model: str, bodies: Sequence[Body], *, num_at_once: int) -> Measured:
    """Ask the server for all bodies, so many at once."""
    seats = asyncio.Semaphore(num_at_once)
    limits = httpx.Limits(max_connections=num_at_once, max_keepalive_connections=num_at_once)
    async with httpx.AsyncClient(timeout=_ANSWER_SECONDS, limits=limits, trust_env=False) as client:

        async def ask(body: Body) -> int:
            async with seats:
                answer = await client.post(f"{url}/completions", json={**body, "model": model})
                answer.raise_for_status()
                return int(answer.json()["usage"]["completion_tokens"])

        started_at = time.monotonic()
        counts = await asyncio.gather(*map(ask, bodies))
    return Measured(num_tokens=sum(counts), seconds=time.monotonic() - started_at)


def through(stack: OwnStack, batches: Batches, bodies: Sequence[Body]) -> Measured:
    """Submit the bodies as a batch, and wait for its file."""
    client = stack.client()
    lines = (
        {"custom_id": str(number), "method": "POST", "url": _ENDPOINT, "body": {**body, "model": "demo"}}
        for number, body in enumerate(bodies)
    )
    content = "\n".join(map(json.dumps, lines)).encode()
    started_at = time.monotonic()
    file = client.files.create(file=("w1.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=_ENDPOINT, completion_window="24h")
    ended = batches.wait_for(batch.id, "completed", poll_seconds=_POLL_SECONDS)
    seconds = time.monotonic() - started_at
    if ended.request_counts.failed or ended.usage is None:
        raise SystemExit(f"{ended.request_counts.failed} lines failed: {ended.error_file_id}")
    return Measured(num_tokens=ended.usage.output_tokens, seconds=seconds)


def measure(stack: OwnStack, arguments: argparse.Namespace, bodies: Sequence[Body]) -> None:
    """Print each pair, and the ratio of all."""
    batches = stack.batches()
    ways: dict[str, Callable[[], Measured]] = {
        "bare": lambda: asyncio.run(
            bare(arguments.url, arguments.model, bodies, num_at_once=arguments.max_concurrency)
        ),
        "service": lambda: through(stack, batches, bodies),
    }
    for way in ways.values():
        way()  # warm-up
    seconds: dict[str, float] = dict.fromkeys(ways, 0.0)
    ratios, before, spent_by_service = [], batches.processor_seconds(), 0
    for number in range(arguments.pairs):
        names = list(ways)[:: 1 if number % 2 == 0 else -1]
        speeds = {}
        for name in names:
            done = ways[name]()
            seconds[name] += done.seconds
            speeds[name] = round(done.tokens_per_second, 1)
        spent_by_service += len(bodies)
        ratios.append(speeds["service"] / speeds["bare"])
        print(json.dumps({**speeds, "ratio": round(ratios[-1], 3), "load": os.getloadavg()[0]}), flush=True)
    print(f"through the service ÷ bare: {statistics.median(ratios):.3f} in the median, ", end="")
    print(f"{seconds['bare'] / seconds['service']:.3f} of all the time")
    print(f"processor ms a line: {spent(before, batches.processor_seconds(), num_lines=spent_by_service)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.partition("\n")[0])
    parser.add_argument("--url", required=True, help="of the server's API, as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", required=True, help="the model's name at the server")
    parser.add_argument("--tokenizer", help="folder with the model's tokenizer, for the service")
    parser.add_argument("--vocab-size", type=natural, default=1000)
    parser.add_argument("--context", type=natural, default=512, help="tokens of prompt and answer")
    parser.add_argument("--requests", type=natural, default=64)
    parser.add_argument("--max-concurrency", type=natural, default=64, help="requests of the bare client at once")
    parser.add_argument("--pairs", type=natural, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenmill", default="tokenmill", help="tokenmill executable of the revision to measure")
    arguments = parser.parse_args()
    bodies = bodies_like_w1(
        arguments.requests, vocab_size=arguments.vocab_size, context=arguments.context, seed=arguments.seed
    )
    server = ["--engine", "openai", "--url", arguments.url, "--model", arguments.model]
    server += [] if arguments.tokenizer is None else ["--tokenizer", arguments.tokenizer]
    with own_stack(arguments.tokenmill, *server, environment={}) as stack:
        measure(stack, arguments, bodies)


if __name__ == "__main__":
    main()
