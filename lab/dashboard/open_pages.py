"""Keeps many pages open, as visible browser tabs do, and reports what all processes spend on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx
import psutil
from sqlalchemy import text

from lab.chaos.stack import children_of
from lab.dashboard.pages import sign_in
from lab.dashboard.rows import Filled, beat, get_on
from lab.dashboard.stack import DashboardStack

_BEAT_SECONDS = 2.0
_TENANT_PAGES = ("/live/overview", "/live/batches", "/live/models", "/live/batches?show=open")
_OPERATOR_PAGES = ("/live/overview", "/live/batches", "/live/models")
_OPERATORS = 5
"""One in five open pages is an operator's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The cost while pages were open, or while none was."""

    share: float
    """CPU time of the API and Postgres as a share of one core."""
    transactions_a_second: float
    """A refresh of all open pages is one transaction; the workers' heartbeats need some without any page."""


@dataclass(slots=True)
class Told:
    """The messages that a page received."""

    messages: list[int] = field(default_factory=list)
    """Their sizes in bytes, in order."""


def measure(stack: DashboardStack, filled: Filled, *, num_open: int, seconds: float) -> None:
    """Print the CPU share of open pages: as many different ones as there are, and all the same."""
    idle, _ = asyncio.run(_spend(stack, filled, [], seconds=seconds))
    print(f"\nno page open: {idle.share:.1%} of a core, for {seconds:.0f} s", flush=True)
    operators = [(filled.operator_key, "/live/overview")] * num_open
    for what, opened in (("of many viewers", _spread(filled, num_open)), ("the same", operators)):
        spent, received = asyncio.run(_spend(stack, filled, opened, seconds=seconds))
        share, looks = spent.share - idle.share, spent.transactions_a_second - idle.transactions_a_second
        firsts = [page.messages[0] for page in received]
        later = [size for page in received for size in page.messages[1:]]
        print(
            f"{num_open} open pages, {what} ({len(set(opened))} different): {share:.1%} of a core more, at {looks:.2f} "
            f"looks at all of them a second, {share / max(looks, 0.01) * 1e3:.0f} ms each; first messages of at most "
            f"{max(firsts):,} bytes, {len(later) / num_open / seconds:.2f} further ones a second and page, of at most "
            f"{max(later, default=0):,}",
            flush=True,
        )


def _spread(filled: Filled, num_open: int) -> list[tuple[str, str]]:
    """Return keys and streams: one in five an operator's, the others of one tenant after the other."""
    operators = num_open // _OPERATORS
    keys = filled.tenant_keys
    tenants = [
        (keys[number % len(keys)], _TENANT_PAGES[number // len(keys) % len(_TENANT_PAGES)])
        for number in range(num_open - operators)
    ]
    return tenants + [(filled.operator_key, _OPERATOR_PAGES[n % len(_OPERATOR_PAGES)]) for n in range(operators)]


async def _spend(
    stack: DashboardStack, filled: Filled, opened: Sequence[tuple[str, str]], *, seconds: float
) -> tuple[Spent, list[Told]]:
    """Return what was spent while these pages were open, and what each received."""
    async with AsyncExitStack() as closing, asyncio.TaskGroup() as tasks:
        browsers = {key: await closing.enter_async_context(_browser(stack)) for key, _ in opened}
        for key, browser in browsers.items():
            sign_in(await browser.post("/sign-in", data={"key": key}))
        received = [Told() for _ in opened]
        listening = [
            tasks.create_task(_listen(browsers[key], path, page))
            for (key, path), page in zip(opened, received, strict=True)
        ]
        while not all(page.messages for page in received):
            await asyncio.sleep(0.1)
        spent, begun, began_at = _processor_seconds(stack), _transactions(stack), time.monotonic()
        while (elapsed := time.monotonic() - began_at) < seconds:
            await asyncio.to_thread(beat, stack.engine)
            await asyncio.to_thread(get_on, stack.engine)
            await asyncio.sleep(min(_BEAT_SECONDS, max(seconds - elapsed, 0)))
        elapsed = time.monotonic() - began_at
        share = (_processor_seconds(stack) - spent) / elapsed
        rate = (_transactions(stack) - begun) / elapsed
        for task in listening:
            task.cancel()
    return Spent(share=share, transactions_a_second=rate), received


def _browser(stack: DashboardStack) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=stack.url, timeout=httpx.Timeout(60), limits=limits)


async def _listen(browser: httpx.AsyncClient, path: str, page: Told) -> None:
    async with browser.stream("GET", path) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                page.messages.append(len(line.encode()))


def _transactions(stack: DashboardStack) -> int:
    with stack.engine.connect() as connection:
        return int(connection.execute(_BEGUN).scalar_one())


_BEGUN = text("SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query = 'BEGIN'")


def _processor_seconds(stack: DashboardStack) -> float:
    """Return the CPU time of the API and all processes of Postgres so far, including ended ones."""
    servers = [psutil.Process(stack.postgres.pid), psutil.Process(stack.api.pid)]
    every = [*servers, *children_of(stack.postgres.pid), *children_of(stack.api.pid)]
    times = [process.cpu_times() for process in every]
    ended = [process.cpu_times() for process in servers]
    own = sum(one.user + one.system for one in times)
    return float(own + sum(one.children_user + one.children_system for one in ended))
