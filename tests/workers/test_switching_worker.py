"""Tests of the loop of a worker of several models with a real database and scripted workers, and of its options."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from cli import roles
from cli.switching import serving
from cli.switching.failures import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Failures
from cli.switching.options import ServedName, WorkerCommand, models_of
from cli.switching.serving import SwitchingWorker
from cli.switching.turn import Turn
from jobs import served_models
from jobs.errors import InputError
from jobs.scaling.switches import Announced, OutOfServiceError
from jobs.settings import Settings
from jobs.tables import Worker


@dataclass
class ScriptedTurn:
    """A worker that is ready at once and ends when asked, or ends with a reason, before it is ready or afterwards."""

    ends_because: str | None = None
    is_ready: bool = True
    is_stubborn: bool = False
    exit_code: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.exit_code = None if self.ends_because is None else 1

    def ask_to_end(self) -> None:
        self.exit_code = None if self.is_stubborn else 0

    def kill(self) -> None:
        self.exit_code = -9

    def reason(self) -> str:
        return self.ends_because or ""


Start = Callable[[Announced], ScriptedTurn]


@pytest.fixture
def run_with(maker: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that runs a worker of models `a` and `b` until its script ends; it returns what was served."""
    monkeypatch.setattr(serving, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(serving, "_END_SECONDS", 0.0)
    with maker.begin() as session:
        for name in ("a", "b"):
            served_models.add_model(session, name, f"/models/{name}")

    def run_with(*turns: ScriptedTurn) -> list[str]:
        served, stop, script = [], threading.Event(), list(turns)

        def start(announced: Announced) -> ScriptedTurn:
            served.append(announced.model)
            if len(script) == 1:
                stop.set()
            return script.pop(0)

        SwitchingWorker(
            sessions=maker,
            settings=Settings(drain_seconds=0.0),
            models=[ServedName(name=name, path=None) for name in ("a", "b")],
            start=start,  # type: ignore[arg-type]  # it returns what has the methods of a Turn
            stop=stop,
            on_ready=lambda: None,
        ).run()
        return served

    return run_with


def rows(maker: sessionmaker[Session]) -> Sequence[Worker]:
    with maker() as session:
        return session.query(Worker).order_by(Worker.started_at).all()


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_model_whose_worker_ends_is_left_out_for_a_while(
    run_with: Callable[..., list[str]], maker: sessionmaker[Session], is_ready: bool
) -> None:
    assert run_with(ScriptedTurn("too little memory.", is_ready=is_ready), ScriptedTurn()) == ["a", "b"]
    failed, last = rows(maker)
    assert (failed.model, failed.left_out) == ("a", {"a": "too little memory."})
    assert (last.model, last.left_out) == ("b", {"a": "too little memory."})
    assert failed.stopped_at is not None
    assert last.stopped_at is not None


def test_a_worker_that_took_itself_out_ends_and_its_model_is_left_out(
    run_with: Callable[..., list[str]], maker: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    def out(*_: object, **__: object) -> Announced | None:
        raise OutOfServiceError("no numbers.")

    monkeypatch.setattr(serving, "DECIDE_SECONDS", 0.0)
    monkeypatch.setattr("jobs.scaling.switches.switch", out)
    broken = ScriptedTurn()
    assert run_with(broken, ScriptedTurn()) == ["a", "b"]
    assert broken.exit_code == 0
    assert [row.left_out for row in rows(maker)] == [{"a": "no numbers."}] * 2


def test_a_worker_that_does_not_end_is_killed(run_with: Callable[..., list[str]], maker: sessionmaker[Session]) -> None:
    turn = ScriptedTurn(is_stubborn=True)
    assert run_with(turn) == ["a"]
    assert turn.exit_code == -9
    assert rows(maker)[0].stopped_at is not None, "it could not sign off itself"


def test_pauses_grow_until_a_model_has_been_served() -> None:
    now = [0.0]
    failures = Failures(lambda: now[0])
    assert [failures.add("a", "why") for _ in range(3)] == [FIRST_PAUSE_SECONDS * factor for factor in (1, 2, 4)]
    assert list(failures.paused) == ["a"]
    now[0] = 4 * FIRST_PAUSE_SECONDS
    assert (list(failures.paused), failures.reasons) == ([], {"a": "why"}), "the reason is shown until it is served"
    assert [failures.add("a", "why") for _ in range(30)][-1] == LONGEST_PAUSE_SECONDS
    failures.forget("a")
    assert (list(failures.paused), failures.reasons) == ([], {})
    assert failures.add("a", "why") == FIRST_PAUSE_SECONDS


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import sys; print('first', file=sys.stderr); sys.exit('tokenmill: no such folder.')", "no such folder."),
        ("raise SystemExit(3)", "its worker ended with exit code 3."),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its worker ended by SIGKILL."),
    ],
)
def test_the_last_line_of_a_worker_is_the_reason_of_its_end(
    script: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn = Turn([sys.executable, "-c", script], tmp_path / "ready")
    assert turn.reason() == reason
    assert ("first" in capsys.readouterr().err) is ("first" in script), "its log is passed on"


def test_models_are_names_with_or_without_a_path() -> None:
    assert models_of("a, b=/m/b") == [ServedName(name="a", path=None), ServedName(name="b", path="/m/b")]


@pytest.mark.parametrize("given", ["", "a", "a,", "a,,b", "a,a", "a,b=", "=x,b", "a,b=x,a=y"])
def test_models_that_make_no_sense_are_refused(given: str) -> None:
    with pytest.raises(InputError, match=f"--models is {given!r}"):
        roles.worker(models=given)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": "m"}, "--model"),
        ({"path": "p"}, "--path"),
        ({"chat_template": Path("t")}, "--chat-template"),
        ({"url": "http://127.0.0.1:1/v1"}, "--engine openai"),
        ({"engine": "openai", "url": "http://127.0.0.1:1/v1"}, "--models"),
        ({"max_num_seqs": -1}, "max_num_seqs"),
    ],
)
def test_options_of_one_model_or_of_a_server_are_refused_with_several(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        roles.worker(models="a,b", **options)


def test_a_worker_of_one_model_has_the_options_that_hold_for_each() -> None:
    options = {"device": "cpu", "max_num_seqs": 4, "overlap": False, "enforce_eager": True, "report_decisions": False}
    command = WorkerCommand(options=options, has_suggested_sampling=True)
    words = command.of(ServedName(name="b", path="/m/b"), worker_id="worker_1", ready_file=Path("/r"))
    own = words[words.index("worker") + 1 :]
    assert own == [
        *("--model", "b", "--path", "/m/b", "--worker-id", "worker_1", "--ready-file", "/r", "--suggested-sampling"),
        *("--device", "cpu", "--max-num-seqs", "4", "--no-overlap", "--enforce-eager"),
    ]
