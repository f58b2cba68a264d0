"""Tests of the threads and connections that reads of lines take."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import anyio
from anyio import CapacityLimiter, Semaphore, wait_all_tasks_blocked

from features.lines.http.access import read

NEEDY: Any = SimpleNamespace(reader=SimpleNamespace(needs_database=True))


def test_a_read_of_a_running_batch_waits_for_its_thread_without_a_connection() -> None:
    async def wait() -> None:
        limiter, services = CapacityLimiter(1), SimpleNamespace(session_slots=Semaphore(1))
        taken: list[tuple[int, int]] = []

        def note() -> None:
            taken.append((limiter.borrowed_tokens, services.session_slots.value))

        async with anyio.create_task_group() as group, limiter:
            group.start_soon(lambda: read(services, NEEDY, note, limiter=limiter))  # type: ignore[arg-type]
            await wait_all_tasks_blocked()
            assert (taken, services.session_slots.value) == ([], 1)
        assert taken == [(1, 0)]
        assert (limiter.borrowed_tokens, services.session_slots.value) == (0, 1)

    asyncio.run(wait())
