"""Compiling beside the loop: each grammar once, in its time, and no grammar at another's cost."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from engine.errors import InvalidRequestError
from engine.grammar import Matcher
from engine.grammar_compiler import NUM_THREADS, Compilation, GrammarCompiler
from engine.structured import StructuredOutput

PATIENCE_SECONDS = 60.0


class FakeGrammars:
    """Compile at once, but let grammars that begin with "slow" wait for `release`."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.release = threading.Event()
        self.started = threading.Semaphore(0)

    def load(self) -> None:
        pass

    def compile(self, structured: StructuredOutput) -> Matcher:
        assert structured.regex is not None
        self.started.release()
        if structured.regex.startswith("slow"):
            assert self.release.wait(PATIENCE_SECONDS)
        if structured.regex == "bad":
            raise InvalidRequestError("The regex cannot be used.")
        if structured.regex == "broken":
            raise RuntimeError("no")
        self.compiled.append(structured.regex)
        return Matcher(structured.regex, ())


class Bench:
    """A compiler with a fake library and a clock that is set by hand."""

    def __init__(self, timeout_seconds: float = 10.0) -> None:
        self.now = 0.0
        self.grammars = FakeGrammars()
        self.compiler = GrammarCompiler(self.grammars, timeout_seconds=timeout_seconds, clock=lambda: self.now)

    def submit(self, regex: str) -> Compilation:
        return self.compiler.submit(StructuredOutput(regex=regex))

    def wait_for(self, compilation: Compilation) -> Compilation:
        while not compilation.is_done:
            self.compiler.wait(PATIENCE_SECONDS)
        return compilation

    def wait_for_starts(self, count: int) -> None:
        for _ in range(count):
            assert self.grammars.started.acquire(timeout=PATIENCE_SECONDS)


@pytest.fixture
def bench() -> Any:
    bench = Bench()
    yield bench
    bench.grammars.release.set()


def test_each_grammar_is_compiled_once(bench: Bench) -> None:
    first = bench.submit("a")
    assert bench.submit("a") is first
    bench.wait_for(first)
    assert bench.submit("a") is first
    assert bench.grammars.compiled == ["a"]


def test_more_grammars_than_threads_are_all_compiled(bench: Bench) -> None:
    compilations = [bench.submit(f"grammar {index}") for index in range(5 * NUM_THREADS)]
    for compilation in compilations:
        assert bench.wait_for(compilation).matcher is not None


@pytest.mark.parametrize(
    ("regex", "reason"),
    [("bad", "The regex cannot be used."), ("broken", "The grammar could not be compiled: Runtime")],
)
def test_a_failure_is_kept_and_told_to_the_next_request_too(bench: Bench, regex: str, reason: str) -> None:
    failed = bench.wait_for(bench.submit(regex))
    assert failed.matcher is None
    assert failed.error is not None
    assert failed.error.startswith(reason)
    assert bench.submit(regex).error == failed.error


def test_slow_grammars_fail_after_their_time_and_leave_their_threads_to_others(bench: Bench) -> None:
    slow = [bench.submit(f"slow {index}") for index in range(NUM_THREADS)]
    quick = bench.submit("quick")
    bench.wait_for_starts(NUM_THREADS)
    bench.now = 10.0
    bench.compiler.check_times()
    assert not any(compilation.is_done for compilation in (*slow, quick))
    bench.now = 10.1
    bench.compiler.check_times()
    assert [compilation.error for compilation in slow] == [
        "The grammar was not compiled within 10 s; make it simpler."
    ] * NUM_THREADS
    assert bench.wait_for(quick).matcher is not None


def test_a_grammar_that_ends_after_its_time_stays_failed(bench: Bench) -> None:
    slow = bench.submit("slow")
    bench.wait_for_starts(1)
    bench.now = 11.0
    bench.compiler.check_times()
    bench.grammars.release.set()
    bench.wait_for(bench.submit("next"))
    while "slow" not in bench.grammars.compiled:
        bench.wait_for(bench.submit(f"until it has ended {len(bench.grammars.compiled)}"))
    assert slow.matcher is None
    assert slow.error is not None


def test_time_in_the_queue_and_loading_does_not_count(bench: Bench) -> None:
    slow = [bench.submit(f"slow {index}") for index in range(NUM_THREADS)]
    bench.wait_for_starts(NUM_THREADS)
    waiting = bench.submit("quick")
    bench.now = 9.0
    bench.grammars.release.set()
    for compilation in (*slow, waiting):
        assert bench.wait_for(compilation).matcher is not None
    bench.now = 100.0
    bench.compiler.check_times()
    assert cast(Any, waiting.matcher)._matcher == "quick"
