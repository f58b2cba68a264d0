from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import EngineDied, EngineStartError, InvalidRequestError
from engine.outputs import FinishReason, TokenDelta
from engine.params import SamplingParams
from engine.process import parent
from engine.process.parent import EngineProcess
from engine.scheduling.decisions import Decision, Reason
from tests.engine.builders import greedy, new_request
from tests.engine.tiny_models import TinyModel, TinyModels

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def model(tiny_models: TinyModels) -> TinyModel:
    return tiny_models["llama-gqa"]


@pytest.fixture(scope="module")
def process(model: TinyModel) -> Iterator[EngineProcess]:
    """One process for all tests of this file; those that end it restart it."""
    engine = EngineProcess(config_for(model.path))
    engine.start()
    yield engine
    engine.close()


def config_for(path: Path, *, report_decisions: bool = True) -> EngineConfig:
    return EngineConfig(
        model=str(path),
        dtype="float32",
        device="cpu",
        num_kv_blocks=200,
        num_threads=1,
        report_decisions=report_decisions,
        warm_up=False,
    )


def collect(engine: EngineProcess, timeout_seconds: float = 60.0) -> list[TokenDelta]:
    """Poll until nothing is in flight."""
    deltas: list[TokenDelta] = []
    deadline = time.monotonic() + timeout_seconds
    while engine.running_request_ids:
        assert time.monotonic() < deadline, "the engine does not finish"
        progress = engine.poll(1.0)
        deltas += progress.outputs if progress else []
    return deltas


def poll_until_tokens(engine: EngineProcess) -> None:
    for _ in range(60):
        progress = engine.poll(1.0)
        if progress and any(delta.token_ids for delta in progress.outputs):
            return
    raise AssertionError("no token came")


def take_ends(engine: EngineProcess, *, of: set[int]) -> None:
    """Take the requests that end, until the engine's end is noticed: earlier messages still arrive."""
    while progress := engine.poll(60.0):
        of -= {delta.request_id for delta in progress.outputs if delta.finish_reason}


def add_until_it_raises(engine: EngineProcess, prompt: list[int]) -> None:
    for index in range(1000):  # what was sent just before the end is not noticed until the pipe is
        engine.add(new_request(index, prompt, params=SamplingParams()))
        engine.poll(0.1)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_tokens_through_the_pipe_equal_transformers(process: EngineProcess, model: TinyModel) -> None:
    assert process.info.num_kv_blocks == 200
    assert process.info.eos_token_ids == (2,)
    for index, (prompt, limit) in enumerate(zip(model.prompts, model.max_tokens, strict=True)):
        process.add(new_request(index, prompt, params=SamplingParams(temperature=0.0, max_tokens=limit)))
    tokens: list[list[int]] = [[] for _ in model.prompts]
    for delta in collect(process):
        tokens[delta.request_id] += delta.token_ids
    assert tokens == model.expected


def test_a_process_that_was_begun_is_the_one_that_is_waited_for(model: TinyModel) -> None:
    engine = EngineProcess(config_for(model.path))
    engine.begin()
    begun = engine.pid
    assert engine.start().num_kv_blocks == 200
    assert engine.pid == begun is not None
    engine.close()


def test_a_process_that_was_begun_and_is_not_wanted_ends(model: TinyModel) -> None:
    engine = EngineProcess(config_for(model.path))
    engine.begin()
    engine.close()
    assert not engine.is_alive


def test_the_schedulers_decisions_come_along(process: EngineProcess, model: TinyModel) -> None:
    process.add(new_request(31, model.prompts[0], params=SamplingParams(max_tokens=2)))
    decisions: list[Decision] = []
    while process.running_request_ids:
        progress = process.poll(1.0)
        decisions += progress.decisions if progress else []
    assert [(one.request_id, one.reason) for one in decisions if one.request_id == 31] == [(31, Reason.STARTED)]


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_an_engine_reports_decisions_where_they_are_asked_for(*, is_asked_for: bool, model: TinyModel) -> None:
    engine = build_engine(config_for(model.path, report_decisions=is_asked_for))
    engine.add(new_request(1, model.prompts[0], params=SamplingParams(max_tokens=1)))
    engine.step()
    assert bool(engine.new_decisions()) is is_asked_for
    assert engine.new_decisions() == []


def test_a_refused_request_is_an_error_delta_and_the_loop_lives(process: EngineProcess) -> None:
    process.add(new_request(1, [5] * 400, params=SamplingParams(max_tokens=4)))
    (delta,) = collect(process)
    assert delta.finish_reason is FinishReason.ERROR
    assert "400 tokens" in str(delta.error)
    assert process.is_alive


def test_an_abort_ends_all_children(process: EngineProcess, model: TinyModel) -> None:
    process.add(new_request(1, model.prompts[0], params=SamplingParams(n=3, max_tokens=190, ignore_eos=True)))
    process.abort([1, 77])
    deltas = collect(process)
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [FinishReason.ABORT] * 3


def test_an_abort_may_end_one_child(process: EngineProcess, model: TinyModel) -> None:
    process.add(new_request(1, model.prompts[0], params=SamplingParams(n=2, max_tokens=190, ignore_eos=True)))
    process.abort_children([(1, 1), (1, 5), (77, 0)])
    ends = {delta.index: delta.finish_reason for delta in collect(process) if delta.finish_reason}
    assert ends == {0: FinishReason.LENGTH, 1: FinishReason.ABORT}
    assert process.running_request_ids == ()


def test_an_idle_engine_shows_that_it_is_alive_every_second(process: EngineProcess) -> None:
    beats = [process.poll(2.0) for _ in range(2)]
    assert all(beat is not None and beat.outputs == [] for beat in beats)
    assert process.poll(1.0) is not None


def test_a_killed_child_is_reported_with_what_was_in_flight_and_can_be_started_again(
    process: EngineProcess, model: TinyModel
) -> None:
    indices = range(3, 67)  # more than a machine that is busy elsewhere lets end before the kill
    for index in indices:
        process.add(new_request(index, model.prompts[3], params=SamplingParams(max_tokens=180, ignore_eos=True)))
    poll_until_tokens(process)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    in_flight = set(process.running_request_ids)
    with pytest.raises(EngineDied) as caught:
        take_ends(process, of=in_flight)
    assert caught.value.exit_code == -signal.SIGKILL
    assert set(indices[-8:]) <= in_flight
    assert set(caught.value.request_ids) == in_flight
    assert not process.is_alive
    process.start()
    process.add(
        new_request(3, model.prompts[3], params=SamplingParams(temperature=0.0, max_tokens=model.max_tokens[3]))
    )
    assert [token for delta in collect(process) for token in delta.token_ids] == model.expected[3]


def add_until_it_is_over(engine: EngineProcess) -> None:
    for index in range(200):  # more than a pipe holds
        engine.add(new_request(index, [5] * 20_000, params=SamplingParams(max_tokens=1)))


def outcome_in_a_thread(call: Callable[[], None]) -> Future[None]:
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            call()
            outcome.set_result(None)
        except Exception as error:  # noqa: BLE001 - the test reads it
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def test_a_process_that_reads_nothing_more_can_be_closed_whoever_waits_for_it(process: EngineProcess) -> None:
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        adding = outcome_in_a_thread(lambda: add_until_it_is_over(process))
        num_sent = -1
        while num_sent < len(process.running_request_ids):
            num_sent = len(process.running_request_ids)
            assert not adding.done()
            time.sleep(0.2)
        outcome_in_a_thread(lambda: process.close(timeout_seconds=0.2)).result(timeout=20)
        assert isinstance(adding.exception(timeout=20), EngineDied)
        assert not is_running(pid)
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
    process.start()


def test_a_process_that_does_not_read_in_time_counts_as_dead(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EngineProcess(config_for(model.path), pipe_timeout_seconds=0.3)
    engine.start()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(parent, "_EXIT_WAIT_SECONDS", 0.1)  # it is stopped: no exit code will ever come
            with pytest.raises(EngineDied):
                add_until_it_is_over(engine)
            with pytest.raises(EngineDied):
                engine.poll(0.1)
    finally:
        engine.close(timeout_seconds=0.2)
    assert not engine.is_alive


def test_a_request_that_cannot_be_sent_is_not_in_flight(process: EngineProcess) -> None:
    with pytest.raises(TypeError):
        process.add(new_request(1, [object()], params=SamplingParams()))  # type: ignore[list-item]
    assert process.running_request_ids == ()
    process.add(new_request(1, [5], params=SamplingParams(max_tokens=1)))
    assert [delta.request_id for delta in collect(process)] == [1]


def test_an_id_that_is_in_flight_is_refused_with_all_that_came_with_it(process: EngineProcess) -> None:
    process.add(new_request(950, [5] * 8, params=greedy(200)))
    with pytest.raises(InvalidRequestError, match="request_id is 950"):
        process.add(new_request(951, [5], params=greedy(1)), new_request(950, [5], params=greedy(1)))
    assert process.running_request_ids == (950,)
    process.abort([950])
    assert {delta.request_id for delta in collect(process)} == {950}


def test_an_id_that_is_given_twice_is_refused_and_what_runs_goes_on(process: EngineProcess) -> None:
    process.add(new_request(960, [5] * 8, params=greedy(20)))
    with pytest.raises(InvalidRequestError, match="request_id is 961"):
        process.add(new_request(961, [5], params=greedy(1)), new_request(961, [6], params=greedy(1)))
    assert process.running_request_ids == (960,)
    assert {delta.request_id for delta in collect(process)} == {960}


def test_a_message_that_the_child_cannot_read_ends_it_with_the_reason(process: EngineProcess) -> None:
    process.add(new_request(1, [True, 5], params=SamplingParams(max_tokens=1)))
    with pytest.raises(EngineDied, match="Expected `int`, got `bool`"):
        collect(process, timeout_seconds=20)
    process.start()


def test_a_dead_engine_raises_on_add_and_close_may_be_called_again(process: EngineProcess, model: TinyModel) -> None:
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineDied):
        add_until_it_raises(process, model.prompts[0])
    process.close()
    process.close()
    assert not is_running(pid)
    with pytest.raises(EngineDied):
        process.add(new_request(0, model.prompts[0], params=SamplingParams()))


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        ("missing", "no model directory at"),
        ("empty", "no config.json"),
        ("no-weights", "only safetensors weights are read"),
    ],
)
def test_a_bad_model_is_one_sentence(*, prepare: str, reason: str, tmp_path: Path, model: TinyModel) -> None:
    path = tmp_path / "model"
    if prepare != "missing":
        path.mkdir()
    if prepare == "no-weights":
        (path / "config.json").write_text((model.path / "config.json").read_text())
    engine = EngineProcess(config_for(path))
    with pytest.raises(EngineStartError, match=reason) as caught:
        engine.start()
    assert "\n" not in str(caught.value)
    assert not engine.is_alive


def test_the_child_dies_with_its_parent(model: TinyModel) -> None:
    script = textwrap.dedent(
        f"""
        import time
        from engine.config import EngineConfig
        from engine.process.parent import EngineProcess
        engine = EngineProcess(EngineConfig(model={str(model.path)!r}, device="cpu", num_kv_blocks=50, warm_up=False))
        engine.start()
        print(engine.pid, flush=True)
        time.sleep(600)
        """
    )
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    try:
        child_pid = int(owner.stdout.readline())
        assert is_running(child_pid)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    deadline = time.monotonic() + 10
    while is_running(child_pid):
        assert time.monotonic() < deadline, "the child outlived its parent"


def test_messages_cost_no_torch() -> None:
    code = "import sys, engine.process.messages, engine.process.parent; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
