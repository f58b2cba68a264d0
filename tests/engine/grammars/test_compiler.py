"""Tests of compiling beside the loop: each grammar once, within its time, and not at another's cost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from engine.errors import InvalidRequestError
from engine.grammars.compiler import MAX_CACHED_CHARACTERS, MAX_THREADS, NUM_THREADS, Compilation, GrammarCompiler
from engine.structured import StructuredOutput

PATIENCE_SECONDS = 60.0


class FakeGrammars:
    """Compiles at once, but grammars that begin with "slow" wait until they, or all, are released."""

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
        self.compiler = GrammarCompiler(self.grammars, timeout_seconds=timeout_seconds, clock=lambda _: self.now)

    def submit(self, regex: str, *, tenant: str | None = None) -> Compilation[str]:
        """Submit a grammar, by default of its own tenant."""
        return self.compiler.submit(StructuredOutput(regex=regex), tenant=regex if tenant is None else tenant)

    def wait_for(self, compilation: Compilation[str]) -> Compilation[str]:
        while not compilation.is_done:
            self.compiler.wait(PATIENCE_SECONDS)
        return compilation

    def let_time_run_out(self, *regexes: str) -> None:
        """Submit these slow grammars, and let all exceed their time."""
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


def test_what_is_spent_is_compiled_anew_for_whoever_asks_next() -> None:
    grammars, spent = FakeGrammars(), {"a"}
    compiler = GrammarCompiler(grammars, timeout_seconds=10.0, is_spent=spent.__contains__)
    for regex in ("a", "a", "b", "b"):
        compiler.compile(StructuredOutput(regex=regex))
    assert sorted(grammars.compiled) == ["a", "a", "b"]


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


def test_no_more_threads_are_left_behind_than_allowed_and_what_waits_does_not_fail(bench: Bench) -> None:
    done = bench.wait_for(bench.submit("done before"))
    bench.wait_for_starts(1)
    bench.let_time_run_out(*SLOW)
    waiting = [bench.submit("waiting"), bench.submit("new")]
    bench.now += 1000.0
    bench.compiler.check_times()
    assert not any(compilation.is_done for compilation in waiting)
    assert bench.submit("done before") is done
    bench.grammars.release(SLOW[1])
    assert [bench.wait_for(compilation).compiled for compilation in waiting] == ["waiting", "new"]
    assert bench.grammars.compiled == ["done before", SLOW[1], "waiting", "new"]


def test_slow_grammars_of_one_tenant_leave_a_thread_to_the_others(bench: Bench) -> None:
    slow = [bench.submit(f"slow {index}", tenant="bulk") for index in range(7)]
    bench.wait_for_starts(1)
    for index in range(5):
        assert bench.wait_for(bench.submit(f"quick {index}", tenant="innocent")).compiled is not None
        bench.now += 11.0  # the first slow one has run over its time meanwhile
        bench.compiler.check_times()
    assert [compilation.is_done for compilation in slow] == [True] + [False] * 6
    bench.grammars.release()
    assert [bench.wait_for(compilation).compiled for compilation in slow[1:]] == [f"slow {n}" for n in range(1, 7)]


def test_slow_grammars_of_two_tenants_leave_a_thread_to_a_third(bench: Bench) -> None:
    slow = [bench.submit(f"slow {index}", tenant=f"evil {index}") for index in range(NUM_THREADS)]
    bench.wait_for_starts(NUM_THREADS)
    bench.now = 1.0  # well within their time
    for index in range(5):
        assert bench.wait_for(bench.submit(f"quick {index}", tenant="innocent")).compiled is not None
    assert not any(compilation.is_done for compilation in slow)


def test_who_was_slow_waits_for_who_is(bench: Bench) -> None:
    for index in range(3):
        compilation = bench.submit(f"slow {index}", tenant=f"evil {index}")
        bench.wait_for_starts(1)
        bench.now += 1.0
        bench.grammars.release(f"slow {index}")
        bench.wait_for(compilation)
    for index in range(NUM_THREADS):
        bench.submit(f"slow again {index}", tenant=f"evil {index}")
    bench.wait_for_starts(NUM_THREADS)
    bench.now += 1.0
    third = bench.submit("quick", tenant="evil 2")
    assert bench.wait_for(bench.submit("quick too", tenant="innocent")).compiled is not None
    assert not third.is_done
    bench.grammars.release("slow again 0")
    assert bench.wait_for(third).compiled == "quick"


def test_tenants_take_turns_whoever_came_with_more(bench: Bench) -> None:
    bench.submit("slow one", tenant="first")
    bench.wait_for_starts(1)
    others = [bench.submit(f"slow {name}", tenant=name) for name in ("b", "c")]
    waiting = [bench.submit(f"{name} {index}", tenant=name) for name in ("b", "c") for index in range(2)]
    bench.wait_for_starts(1)
    bench.grammars.release("slow b", "slow c")
    for compilation in (*others, *waiting):
        bench.wait_for(compilation)
    assert bench.grammars.compiled == ["slow b", "slow c", "b 0", "c 0", "b 1", "c 1"]


def test_a_grammar_that_another_tenant_waits_for_too_is_compiled_in_the_turn_that_comes_first(bench: Bench) -> None:
    bench.submit("slow", tenant="bulk")
    bench.wait_for_starts(1)
    shared = bench.submit("shared", tenant="bulk")
    assert bench.submit("shared", tenant="innocent") is shared
    assert bench.wait_for(shared).compiled == "shared"
    bench.grammars.release()
    assert bench.wait_for(bench.submit("last", tenant="bulk")).compiled == "last"
    assert bench.grammars.compiled.count("shared") == 1


def test_compiled_grammars_are_kept_up_to_a_size(bench: Bench) -> None:
    first = bench.wait_for(bench.submit("a" * (MAX_CACHED_CHARACTERS // 2)))
    assert bench.submit("a" * (MAX_CACHED_CHARACTERS // 2)) is first
    bench.wait_for(bench.submit("b" * (MAX_CACHED_CHARACTERS // 2)))
    bench.wait_for(bench.submit("c"))
    assert bench.submit("a" * (MAX_CACHED_CHARACTERS // 2)) is not first


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
    assert bench.compiler.compile(StructuredOutput(regex="quick"), tenant="other").compiled == "quick"
    assert not heard
    bench.now = 1.0
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    bench.grammars.release()
    assert [compilation.error for compilation in heard] == [
        "The grammar was not compiled within 0.5 s; make it simpler."
    ] * 3
    assert heard[0] is heard[1] is heard[2]  # compiled once
