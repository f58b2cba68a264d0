"""Tests of a process that handles untrusted data, as seen by its parent."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from confined.child_process import ChildDiedError, ChildProcess

LATER = time.monotonic() + 3600


@contextmanager
def told(*words: str, **environment: str) -> Iterator[ChildProcess]:
    child = ChildProcess.start("tests.confined.told", environment=environment)
    try:
        child.give("".join(words).encode(), give_up_at=LATER)
        yield child
    finally:
        child.end()


def test_it_knows_what_it_is_given_and_no_secret_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_API_KEY", "tm-secret")
    with told("says", GIVEN="yes") as child:
        said = b"".join(iter(lambda: child.take(1, LATER), b"\0"))
    assert json.loads(said)["GIVEN"] == "yes"
    assert "tm-secret" not in said.decode()


@pytest.mark.parametrize(("word", "code", "said"), [("dies", -6, "SIGABRT"), ("ends", 3, "exit status 3")])
def test_how_it_ended_is_told_to_whoever_waits_for_it(word: str, code: int, said: str) -> None:
    with told(word) as child, pytest.raises(ChildDiedError) as caught:
        child.take(1, LATER)
    assert (caught.value.code, str(caught.value)) == (code, said)


def test_who_has_ended_is_written_to_without_an_error() -> None:
    with told("ends") as child:
        with pytest.raises(ChildDiedError):
            child.take(1, LATER)
        child.give(b"says", give_up_at=LATER)


def test_who_reads_nothing_is_not_written_to_for_ever() -> None:
    with told("stop") as child, pytest.raises(TimeoutError):
        child.give(bytes(1 << 20), give_up_at=time.monotonic() + 0.1)


def test_what_does_not_come_in_time_is_not_waited_for_and_the_process_is_gone_at_the_end() -> None:
    with told() as child, pytest.raises(TimeoutError):
        child.take(1, 0.0)
    with pytest.raises(ProcessLookupError):
        os.kill(child.process_id, 0)
