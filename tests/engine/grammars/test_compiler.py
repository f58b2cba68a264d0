"""Compiling beside the loop: each grammar once, in its time, and no grammar at another's cost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from engine.errors import InvalidRequestError
from engine.grammars.compiler import MAX_THREADS, NUM_THREADS, Compilation, GrammarCompiler
from engine.structured import StructuredOutput

PATIENCE_SECONDS = 60.0


class FakeGrammars:
    """Compile at once, but let grammars that begin with "slow" wait until they, or all, are released."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.started = threading.Semaphore(0)
        self._released: set[str] = set()
        self._changed = threading.Condition()

    def release(self, *regexes: str) -> None:
        with self._changed:
            self._released.update(regexes or {"all"})
            self._changed.notify_all()

    def load(self) -> None:
        pass

    def compile(self, structured: StructuredOutput) -> str:
        assert structured.regex is not None
        self.started.release()
        if structured.regex.startswith("slow"):
            with self._changed:
                assert self._changed.wait_for(lambda: self._released & {structured.regex, "all"}, PATIENCE_SECONDS)
        if structured.regex == "bad":
            raise InvalidRequestError("The regex cannot be used.")
        if structured.regex == "broken":
            raise RuntimeError("no")
        self.compiled.append(structured.regex)
        return structured.regex


class Bench:
    """A compiler with a fake library and a clock that is set by hand."""

    def __init__(self, timeout_seconds: float = 10.0) -> None:
        self.now = 0.0
        self.grammars = FakeGrammars()
        self.compiler = GrammarCompiler(self.grammars, timeout_seconds=timeout_seconds, clock=lambda: self.now)

    def submit(self, regex: str) -> Compilation[str]:
        return self.compiler.submit(StructuredOutput(regex=regex))

    def wait_for(self, compilation: Compilation[str]) -> Compilation[str]:
        while not compilation.is_done:
            self.compiler.wait(PATIENCE_SECONDS)
        return compilation

    def let_time_run_out(self, *regexes: str) -> None:
        """Submit so many slow grammars, and let them all run over their time."""
        for regex in regexes:
            self.submit(regex)
            self.wait_for_starts(1)
            self.now += 11.0
            self.compiler.check_times()

    def wait_for_starts(self, count: int) -> None:
        for _ in range(count):
            assert self.grammars.started.acquire(timeout=PATIENCE_SECONDS)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.grammars.release()


def test_each_grammar_is_compiled_once(bench: Bench) -> None:
    first = bench.submit("a")
    assert bench.submit("a") is first
    bench.wait_for(first)
    assert bench.submit("a") is first
    assert bench.grammars.compiled == ["a"]


def test_more_grammars_than_threads_are_all_compiled(bench: Bench) -> None:
    compilations = [bench.submit(f"grammar {index}") for index in range(5 * NUM_THREADS)]
    for compilation in compilations:
        assert bench.wait_for(compilation).compiled is not None


@pytest.mark.parametrize(
    ("regex", "reason"),
    [("bad", "The regex cannot be used."), ("broken", "The grammar could not be compiled: Runtime")],
)
def test_a_failure_is_kept_and_told_to_the_next_request_too(bench: Bench, regex: str, reason: str) -> None:
    failed = bench.wait_for(bench.submit(regex))
    assert failed.compiled is None
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
    assert bench.wait_for(quick).compiled is not None


def test_a_grammar_that_ends_after_its_time_stays_failed(bench: Bench) -> None:
    slow = bench.submit("slow")
    bench.wait_for_starts(1)
    bench.now = 11.0
    bench.compiler.check_times()
    bench.grammars.release()
    bench.wait_for(bench.submit("next"))
    while "slow" not in bench.grammars.compiled:
        bench.wait_for(bench.submit(f"until it has ended {len(bench.grammars.compiled)}"))
    assert slow.compiled is None
    assert slow.error is not None


def test_time_in_the_queue_and_loading_does_not_count(bench: Bench) -> None:
    slow = [bench.submit(f"slow {index}") for index in range(NUM_THREADS)]
    bench.wait_for_starts(NUM_THREADS)
    waiting = bench.submit("quick")
    bench.now = 9.0
    bench.grammars.release()
    for compilation in (*slow, waiting):
        assert bench.wait_for(compilation).compiled is not None
    bench.now = 100.0
    bench.compiler.check_times()
    assert waiting.compiled == "quick"


SLOW = [f"slow {index}" for index in range(MAX_THREADS)]


def test_a_grammar_that_ran_over_its_time_is_not_started_again_before_its_thread_has_ended(bench: Bench) -> None:
    bench.let_time_run_out("slow")
    again = bench.submit("slow")
    assert again.error == "The grammar was not compiled within 10 s; make it simpler."
    bench.compiler.wait(0)
    bench.grammars.release("slow")
    bench.compiler.wait(PATIENCE_SECONDS)
    assert bench.wait_for(bench.submit("slow")).compiled == "slow"
    assert bench.grammars.compiled == ["slow", "slow"]


def test_no_more_threads_are_left_behind_than_allowed(bench: Bench) -> None:
    done = bench.wait_for(bench.submit("done before"))
    bench.wait_for_starts(1)
    bench.let_time_run_out(*SLOW[:-1])
    last, waiting = bench.submit(SLOW[-1]), bench.submit("waiting")
    bench.wait_for_starts(1)
    assert not waiting.is_done
    bench.now += 11.0
    bench.compiler.check_times()
    refusal = (
        f"{MAX_THREADS} grammars that took longer than 10 s are still being compiled. No other is taken until one of "
        "them has ended; send this request again later."
    )
    assert last.error == "The grammar was not compiled within 10 s; make it simpler."
    assert [waiting.error, bench.submit("new").error] == [refusal, refusal]
    assert bench.submit("done before") is done
    bench.compiler.wait(0)
    bench.grammars.release(SLOW[1])
    bench.compiler.wait(PATIENCE_SECONDS)
    assert bench.wait_for(bench.submit("waiting")).compiled == "waiting"
    assert bench.grammars.compiled == ["done before", SLOW[1], "waiting"]


def test_a_thread_whose_time_is_over_goes_on_with_what_waits(bench: Bench) -> None:
    bench.let_time_run_out(*SLOW[:-1])
    bench.submit(SLOW[-1])
    waiting = bench.submit("waiting")
    bench.grammars.release(SLOW[0])
    assert bench.wait_for(waiting).compiled == "waiting"


def test_whoever_waits_for_one_grammar_hears_when_its_time_is_over() -> None:
    bench = Bench(timeout_seconds=0.5)
    heard: list[Compilation[str]] = []

    def ask() -> None:
        heard.append(bench.compiler.compile(StructuredOutput(regex="slow")))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    bench.wait_for_starts(1)
    assert bench.compiler.compile(StructuredOutput(regex="quick")).compiled == "quick"
    assert not heard
    bench.now = 1.0
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    bench.grammars.release()
    assert [compilation.error for compilation in heard] == [
        "The grammar was not compiled within 0.5 s; make it simpler."
    ] * 3
    assert heard[0] is heard[1] is heard[2]  # compiled once
