"""Tests of parts that a stack starts only on demand."""

from __future__ import annotations

import threading

from cli.embedded.demand import noticed
from jobs.errors import ServiceError


def test_a_need_is_noticed_though_looks_fail_before_and_nobody_looks_after_it() -> None:
    looks: list[bool | None] = [True, False, None]
    has_looked = threading.Event()

    def look() -> bool:
        found = looks.pop()
        if found is None:
            raise ServiceError("Postgres is away")
        if found:
            has_looked.set()
        return found

    with noticed(look, every=0.001) as is_there:
        assert has_looked.wait(30)
        for _ in range(3000):
            if is_there():
                break
            threading.Event().wait(0.01)
        assert is_there()
    assert looks == []


def test_nobody_looks_any_more_once_the_block_has_ended() -> None:
    has_looked = threading.Event()

    def look() -> bool:
        has_looked.set()
        return False

    with noticed(look, every=0.001) as is_there:
        assert has_looked.wait(30)
    for thread in threading.enumerate():
        if thread.name == "demand":
            thread.join(30)
    assert not any(thread.name == "demand" for thread in threading.enumerate())
    assert not is_there()
