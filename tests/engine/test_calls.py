"""Tests of calls of `LLM` in a row, concurrent and interrupted: each has its own outputs, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine import LLM, EngineBroken, EngineForked, SamplingParams
from tests.engine.builders import greedy
from tests.engine.tiny_models import TinyModel
from tests.engine.worded import SETTINGS

PARAMS = greedy(12)


@pytest.fixture(scope="module")
def llm(worded: TinyModel) -> LLM:
    return LLM(worded.path, **SETTINGS)


@pytest.fixture
def prompts(worded: TinyModel) -> list[list[int]]:
    return worded.prompts[:3]


@pytest.fixture
def expected(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    return tokens(llm, prompts)


def tokens(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in llm.generate(prompts, PARAMS)]


def before(call: Callable[..., Any], first: Callable[[], None], *, at: int = 1) -> Callable[..., Any]:
    """Return a function that does something before one call of another."""
    num_calls = iter(range(1, 1_000_000))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if next(num_calls) == at:
            first()
        return call(*args, **kwargs)

    return wrapped


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_calls_from_several_threads_have_the_outputs_of_calls_in_a_row(llm: LLM, worded: TinyModel) -> None:
    loads = [worded.prompts[first : first + 3] for first in range(4)] * 2
    in_a_row = [tokens(llm, load) for load in loads]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda load: tokens(llm, load), loads)) == in_a_row


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["seat", "grow", "publish", "leave"])
def test_an_interrupt_in_the_middle_of_a_step_comes_behind_it(
    name: str, *, overlap: bool, worded: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(worded.path, overlap=overlap, **SETTINGS)
    seats = llm.engine.scheduler._seats
    prompts = [[5, 6] * 20, [6, 7] * 20]
    expected = tokens(LLM(worded.path, overlap=overlap, **SETTINGS), prompts)
    with monkeypatch.context() as patch:
        patch.setattr(seats, name, before(getattr(seats, name), interrupt, at=2))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, PARAMS)
    llm.engine.scheduler.check_integrity()
    assert tokens(llm, prompts) == expected
    assert not llm.engine.has_work


def test_an_interrupt_among_requests_that_are_handed_over_leaves_none_behind(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "add", before(llm.engine.add, interrupt, at=2))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, SamplingParams(max_tokens=200, ignore_eos=True))
    assert llm.engine.stats().load.num_waiting == 0


@pytest.mark.parametrize("name", ["seat", "grow", "publish", "leave"])
def test_a_second_interrupt_comes_at_once_and_the_next_call_says_what_it_broke(
    name: str, worded: TinyModel, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(worded.path, **SETTINGS)
    seats = llm.engine.scheduler._seats
    reached = []

    def insist() -> None:
        interrupt()
        reached.append("after the first")
        interrupt()
        reached.append("after the second")

    with monkeypatch.context() as patch:
        patch.setattr(seats, name, before(getattr(seats, name), insist, at=2))
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[5, 6] * 20, [6, 7] * 20], PARAMS)
    assert reached == ["after the first"]
    with pytest.raises(EngineBroken, match=r"half done by KeyboardInterrupt\. .* Make a new LLM"):
        llm.generate(prompts, PARAMS)


def test_an_error_that_tears_the_schedule_is_told_and_no_call_runs_after_it(
    worded: TinyModel, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise MemoryError("no room")

    llm = LLM(worded.path, **SETTINGS)
    seats = llm.engine.scheduler._seats
    with monkeypatch.context() as patch:
        patch.setattr(seats, "_own", before(seats._own, fail, at=2))
        with pytest.raises(MemoryError, match="no room"):
            llm.generate(prompts, PARAMS)
    with pytest.raises(EngineBroken, match="half done by MemoryError: no room"):
        llm.generate(prompts, PARAMS)


def test_a_handler_of_ones_own_hears_of_an_interrupt_and_is_there_afterwards(
    llm: LLM, prompts: list[list[int]], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []

    def handler(number: int, _: object) -> None:
        heard.append(number)

    usual = signal.signal(signal.SIGINT, handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine, "step", before(llm.engine.step, interrupt))
            assert tokens(llm, prompts) == expected
        assert heard == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, usual)


def test_a_prompt_that_calls_while_it_is_made_runs_before(llm: LLM, prompts: list[list[int]]) -> None:
    def made() -> Iterator[list[int]]:
        for prompt in prompts:
            yield prompt + tokens(llm, [prompt])[0]

    assert len(tokens(llm, made())) == 3  # type: ignore[arg-type]


def test_an_error_in_a_step_leaves_nothing_to_the_next_call(
    llm: LLM, prompts: list[list[int]], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise MemoryError("no room")

    runner = llm.engine._runner
    with monkeypatch.context() as patch:
        patch.setattr(runner, "forward", before(runner.forward, fail, at=3))
        with pytest.raises(MemoryError):
            llm.generate(prompts, PARAMS)
    llm.engine.scheduler.check_integrity()
    assert tokens(llm, prompts) == expected


@pytest.mark.parametrize("method", ["generate", "chat"])
def test_a_forked_process_is_refused_at_once_where_a_step_would_never_end(llm: LLM, method: str) -> None:
    given = [[5, 6, 7]] if method == "generate" else [{"role": "user", "content": "a"}]
    child = os.fork()
    if child == 0:
        try:
            getattr(llm, method)(given, PARAMS)
        except EngineForked:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert tokens(llm, [[5, 6, 7]]), "it still runs where it was made"
