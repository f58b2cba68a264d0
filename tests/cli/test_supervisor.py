"""Tests of the supervisor with small shell scripts: order, restarts with growing pauses, stopping in stages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cli.embedded.child import Child, ChildSpec
from cli.supervisor import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, STEADY_SECONDS, StopRequestedError, Supervisor
from jobs.errors import ServiceError


class Clock:
    """Time that passes only in waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def child(folder: Path, name: str, script: str, *, stop_seconds: float = 10.0) -> ChildSpec:
    """Describe a shell script that is ready once it has written `<name>.ready`."""
    ready = folder / f"{name}.ready"
    return ChildSpec(
        name=name,
        command=["/bin/sh", "-c", script.replace("READY", f": > {ready}")],
        log_path=folder / f"{name}.log",
        is_ready=ready.exists,
        before_start=lambda: ready.unlink(missing_ok=True),
        stop_seconds=stop_seconds,
        ready_seconds=20.0,
    )


def sleeper(folder: Path, name: str) -> ChildSpec:
    """It records the order in which the children end."""
    note = f"echo {name} >> {folder}/ended; exit 0"
    return child(folder, name, f"trap '{note}' TERM; READY; while :; do sleep 0.02; done")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def supervisor(said: list[str], clock: Clock) -> Iterator[Supervisor]:
    supervisor = Supervisor(say=said.append, monotonic=clock)
    yield supervisor
    for running in supervisor.children:
        running.kill()


def kill(supervisor: Supervisor, index: int = 0) -> None:
    running = supervisor.children[index]
    running.send(signal.SIGKILL)
    assert running.wait(10)


def test_groups_are_stopped_in_the_opposite_order_of_their_start(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.start([sleeper(tmp_path, "postgres")])
    supervisor.start([sleeper(tmp_path, "api"), sleeper(tmp_path, "worker")])
    supervisor.stop()
    first, second, last = (tmp_path / "ended").read_text().split()
    assert ({first, second}, last) == ({"api", "worker"}, "postgres")
    assert supervisor.children == []


def test_what_is_begun_runs_while_what_it_needs_starts_and_is_stopped_before_it(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    supervisor.begin([sleeper(tmp_path, "worker")])
    looks_for_worker = "while ! test -e worker.ready; do sleep 0.02; done"
    waits = f"cd {tmp_path}; trap 'echo postgres >> ended; exit 0' TERM; {looks_for_worker}; READY; "
    supervisor.start([child(tmp_path, "postgres", waits + "while :; do sleep 0.02; done")])
    supervisor.finish()
    assert [running.spec.name for running in supervisor.children] == ["postgres", "worker"]
    supervisor.stop()
    assert (tmp_path / "ended").read_text().split() == ["worker", "postgres"]


def test_what_is_begun_ends_with_the_others_where_one_of_them_does_not_start(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    supervisor.begin([sleeper(tmp_path, "worker")])
    begun = supervisor.children[0]
    with pytest.raises(ServiceError, match="postgres stopped while starting"):
        supervisor.start([child(tmp_path, "postgres", "exit 1")])
    supervisor.stop()
    assert not begun.is_running


def test_a_child_is_started_once_it_is_needed_and_is_one_of_the_last_group(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    supervisor.start([sleeper(tmp_path, "postgres")])
    supervisor.start([sleeper(tmp_path, "api")])
    needed: list[bool] = []
    supervisor.start_once(sleeper(tmp_path, "prepare"), lambda: bool(needed))
    supervisor.tend()
    assert [running.spec.name for running in supervisor.children] == ["postgres", "api"]
    needed.append(True)
    supervisor.tend()
    supervisor.tend()
    assert [running.spec.name for running in supervisor.children] == ["postgres", "api", "prepare"]
    supervisor.children[-1].wait_until_ready()
    supervisor.stop()
    *others, last = (tmp_path / "ended").read_text().split()
    assert (sorted(others), last) == (["api", "prepare"], "postgres")


def test_a_dead_child_is_started_again_after_a_pause(
    tmp_path: Path, supervisor: Supervisor, clock: Clock, said: list[str]
) -> None:
    supervisor.start([sleeper(tmp_path, "api")])
    kill(supervisor)
    supervisor.tend()
    assert said == [f"api stopped (signal SIGKILL), its log is {tmp_path}/api.log; "
                    f"starting it again in {FIRST_PAUSE_SECONDS:g} s"]  # fmt: skip
    clock.now += FIRST_PAUSE_SECONDS / 2
    supervisor.tend()
    assert not supervisor.children[0].is_running
    clock.now += FIRST_PAUSE_SECONDS
    supervisor.tend()
    assert supervisor.children[0].is_running


def test_pauses_double_until_a_child_has_run_steadily(
    tmp_path: Path, supervisor: Supervisor, clock: Clock, said: list[str]
) -> None:
    supervisor.start([sleeper(tmp_path, "api")])
    for lifetime in (0.0, 0.0, 0.0, STEADY_SECONDS):
        clock.now += lifetime
        kill(supervisor)
        supervisor.tend()
        clock.now += 60.0
        supervisor.tend()
    assert [line.rsplit(" in ", 1)[1] for line in said] == ["0.5 s", "1 s", "2 s", "0.5 s"]


def test_a_child_that_dies_again_and_again_ends_a_supervisor_with_a_limit(tmp_path: Path, clock: Clock) -> None:
    supervisor = Supervisor(say=lambda _: None, monotonic=clock, max_deaths=2)
    supervisor.start([child(tmp_path, "worker", "READY; sleep 0.1; echo out of memory; exit 7")])
    assert supervisor.children[0].wait(10)
    supervisor.tend()
    clock.now += FIRST_PAUSE_SECONDS
    supervisor.tend()
    assert supervisor.children[0].wait(10)
    with pytest.raises(ServiceError, match=r"worker stopped \(exit status 7\): out of memory"):
        supervisor.tend()
    supervisor.stop()


def test_a_child_that_cannot_be_started_again_is_tried_later(
    tmp_path: Path, supervisor: Supervisor, clock: Clock, said: list[str]
) -> None:
    is_blocked: list[bool] = []

    def block() -> None:
        if is_blocked:
            raise ServiceError("the old server is still running")

    spec = sleeper(tmp_path, "postgres")
    supervisor.start([ChildSpec(name=spec.name, command=spec.command, log_path=spec.log_path,
                                is_ready=spec.is_ready, before_start=block)])  # fmt: skip
    kill(supervisor)
    supervisor.tend()
    is_blocked.append(True)
    clock.now += 10
    supervisor.tend()
    assert said[-1] == "postgres does not start: the old server is still running; starting it again in 1 s"
    is_blocked.clear()
    clock.now += 10
    supervisor.tend()
    assert supervisor.children[0].is_running


def test_a_child_that_never_comes_back_is_tried_again_for_ever(
    tmp_path: Path, supervisor: Supervisor, clock: Clock, said: list[str]
) -> None:
    is_blocked: list[bool] = []

    def block() -> None:
        if is_blocked:
            raise ServiceError("no space left on the disk")

    spec = sleeper(tmp_path, "worker")
    supervisor.start([replace(spec, before_start=block)])
    is_blocked.append(True)
    kill(supervisor)
    num_tries = 1100  # as in one night: 2 ** 1024 exceeds a float
    for _ in range(num_tries):
        supervisor.tend()
        clock.now += LONGEST_PAUSE_SECONDS
    assert len(said) == num_tries
    assert said[-1].endswith(f"starting it again in {LONGEST_PAUSE_SECONDS:g} s")


def test_a_child_that_fails_to_start_is_reported_with_its_last_words(tmp_path: Path, supervisor: Supervisor) -> None:
    worker = child(tmp_path, "worker", "echo tokenmill: no such model >&2; exit 1")
    with pytest.raises(ServiceError, match="worker stopped while starting: no such model"):
        supervisor.start([sleeper(tmp_path, "api"), worker])
    assert supervisor.children[0].is_running  # for stop() to end
    supervisor.stop()


def test_a_signal_ends_the_wait_for_children_that_still_start(tmp_path: Path, supervisor: Supervisor) -> None:
    with supervisor.handles_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRequestedError):
            supervisor.start([child(tmp_path, "worker", "sleep 100")])
        supervisor.stop()


def test_a_second_signal_kills_at_once(tmp_path: Path, supervisor: Supervisor) -> None:
    stubborn = child(tmp_path, "worker", "trap '' TERM; READY; while :; do sleep 0.02; done", stop_seconds=1000)
    with supervisor.handles_signals():
        supervisor.start([stubborn])
        running = supervisor.children[0]
        os.kill(os.getpid(), signal.SIGINT)
        supervisor.watch()
        os.kill(os.getpid(), signal.SIGINT)
        supervisor.stop()
    assert running.exit_status == -signal.SIGKILL


def test_logs_are_looked_at_seldom(
    tmp_path: Path, supervisor: Supervisor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.start([sleeper(tmp_path, "api")])
    looked_at: list[float] = []
    monkeypatch.setattr(Child, "rotate_log", lambda _: looked_at.append(clock.now))
    for _ in range(200):
        clock.now += 0.1
        supervisor.tend()
    assert len(looked_at) == 2, "in twenty seconds"


def test_signal_handlers_are_put_back(supervisor: Supervisor) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with supervisor.handles_signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from cli.embedded.child import Child, ChildSpec
        child = Child(ChildSpec(name="api", command=["/bin/sleep", "1000"], log_path=Path({str(tmp_path)!r}, "log"),
                                is_ready=lambda: True))
        child.start()
        print(child.pid, flush=True)
        time.sleep(1000)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        orphan = psutil.Process(int(parent.stdout.readline()))
        assert orphan.is_running()
        parent.kill()
    gone, _ = psutil.wait_procs([orphan], timeout=10)
    assert gone or orphan.status() == psutil.STATUS_ZOMBIE


def test_a_long_log_of_earlier_runs_moves_aside(tmp_path: Path) -> None:
    (tmp_path / "api.log").write_text("what an earlier run wrote")
    supervisor = Supervisor(say=lambda _: None)
    supervisor.start([replace(child(tmp_path, "api", "echo new; READY; sleep 100"), keep_log_bytes=10)])
    supervisor.stop()
    assert (tmp_path / "api.log").read_text() == "new\n"
    assert (tmp_path / "api.log.1").read_text() == "what an earlier run wrote"


def test_the_log_of_a_running_child_is_bounded_and_goes_on(
    tmp_path: Path, supervisor: Supervisor, clock: Clock
) -> None:
    writes = "i=0; while :; do i=$((i+1)); echo line $i; [ $i = 100 ] && READY; done"
    supervisor.start([replace(child(tmp_path, "api", writes), keep_log_bytes=20_000)])
    log, earlier = tmp_path / "api.log", tmp_path / "api.log.1"
    parts = []
    for _ in range(3):
        while log.stat().st_size <= 20_000:
            assert supervisor.children[0].is_running
        clock.now += 60.0
        supervisor.tend()
        parts.append(earlier.read_text().splitlines()[1:-1])  # a line may be truncated where the file was emptied
    supervisor.children[0].kill()
    numbers = [int(line.removeprefix("line ")) for part in parts for line in part]
    assert numbers == sorted(set(numbers)), "each part goes on where the one before it ended"
