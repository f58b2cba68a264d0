"""Tests of `tokenmill autoscale`: every answer of the command and of the database has an end, and no shell runs."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cli.models.autoscaling import REPEATED_SECONDS, Command, CommandError, Scaler, parse
from jobs.errors import ConflictError, InputError, NotFoundError, ServiceError
from jobs.scaling.asking import ask_anew
from tests.cli.service import run, typed


def command(script: str, *, seconds: float = 30.0) -> Command:
    return Command(words=[sys.executable, "-c", script, "{workers}"], seconds=seconds)


def test_a_command_gets_the_number_as_part_of_a_word(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = f"import sys; open({str(out)!r}, 'w').write(repr(sys.argv[1:]))"
    Command(words=[sys.executable, "-c", script, "--set=fleet:{workers}", "$(id); {workers}"], seconds=30).run(3)
    assert out.read_text() == "['--set=fleet:3', '$(id); 3']"


def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(CommandError, match="status 7"):
        command("raise SystemExit(7)").run(1)


def test_a_command_that_is_gone_is_an_error() -> None:
    with pytest.raises(CommandError, match="cannot be started"):
        Command(words=["/nowhere/scale", "{workers}"], seconds=30).run(1)


def test_a_command_that_never_ends_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {note}; wait # $0"
    with pytest.raises(CommandError, match="ended after 4 s"):
        Command(words=["sh", "-c", script, "{workers}"], seconds=4).run(1)
    pid, gives_up_at = int(note.read_text()), time.monotonic() + 30
    while is_running(pid) and time.monotonic() < gives_up_at:
        time.sleep(0.05)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    return bool(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("true", "give a program and {workers}"),
        ("{workers}", "give a program and {workers}"),
        ("", "give a program and {workers}"),
        ("true '{workers}", "cannot be split"),
        ("no-such-program {workers}", "not installed"),
    ],
)
def test_a_command_that_cannot_work_is_refused(given: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(given)
    assert sentence in refused.value.message


class Fleet:
    """Answers of the database, one after the other, and the numbers that were set."""

    def __init__(self, *answers: int | Exception) -> None:
        self._answers: Iterator[int | Exception] = iter(answers)
        self.numbers: list[int | str] = []
        self.now = 0.0
        self.fails = False
        self.scaler = Scaler(model="m", ask=self._ask, set_number=self._set, monotonic=lambda: self.now)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.scaler.look()
            self.now += 30

    def _ask(self) -> int:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _set(self, number: int) -> None:
        if self.fails:
            self.numbers.append(f"not {number}")
            raise CommandError("the command ended with status 1")
        self.numbers.append(number)


def test_the_number_is_set_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(0, 0, 2, 2, 1)
    fleet.look(5)
    assert fleet.numbers == [0, 2, 1]
    assert [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "m: ? → 0 workers",
        "m: 0 → 2 workers",
        "m: 2 → 1 workers",
    ]


def test_on_doubt_the_number_stays(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(2, ConflictError("old"), ConflictError("old"), ServiceError("away"), 2, ConflictError("old"), 1)
    fleet.look(7)
    assert fleet.numbers == [2, 1]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5, "each trouble once, and again after it had ended"
    assert sum("the number stays 2" in line for line in lines) == 3


def test_a_command_that_failed_is_tried_again() -> None:
    fleet = Fleet(2, 2, 2)
    fleet.fails = True
    fleet.look()
    fleet.fails = False
    fleet.look(2)
    assert fleet.numbers == ["not 2", 2]


def test_the_command_is_repeated_now_and_then() -> None:
    fleet = Fleet(2, 2, 2)
    fleet.look()
    fleet.now += REPEATED_SECONDS
    fleet.look(2)
    assert fleet.numbers == [2, 2]


def test_a_model_that_does_not_exist_ends_it() -> None:
    with pytest.raises(NotFoundError):
        Fleet(NotFoundError("no model")).look()


def test_a_database_that_is_not_there_or_never_answers_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(ServiceError, match="within 1 s"):
            ask_anew(f"postgresql://x@127.0.0.1:{port}/x", "m", seconds=1)
        assert time.monotonic() - began < 10
    with pytest.raises(ServiceError, match="did not answer"):
        ask_anew(f"postgresql://x@127.0.0.1:{port}/x", "m", seconds=10)


def test_settings_are_set_shown_and_removed(database: str, api_key: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}
    cost = ("--worker-cost", "2.5", "--max-cost", "10")
    said = run("models", "scale", "tiny", "--max-workers", "8", "--expected-rate", "900", *cost, **admin).stdout
    assert said == (
        "tiny: 0 to 4 workers, start-up 130 s, expected rate 900 tokens/s, 2.50 USD a worker and hour, at most "
        "10.00 an hour\n"
    )
    assert "\t0 to 4\t" in run("models", "list", **admin).stdout
    with pytest.raises(ConflictError, match="last measured never"):
        run("models", "scale", "tiny", **admin)
    assert "model.scale" in run("admin", "log", **admin).stdout
    run("models", "scale", "tiny", "--off", **admin)
    with pytest.raises(ConflictError, match="no settings for scaling"):
        run("models", "scale", "tiny", **admin)
    with pytest.raises(NotFoundError):
        run("models", "scale", "tiny", "--off", **admin)


@pytest.mark.parametrize(
    "options",
    [
        ("--min-workers", "1"),
        ("--max-workers", "2", "--off"),
        ("--max-workers", "0"),
        ("--max-workers", "2", "--min-workers", "3"),
        ("--max-workers", "2", "--startup-seconds", "0"),
        ("--max-workers", "2", "--startup-seconds", "nan"),
        ("--max-workers", "2", "--expected-rate", "0"),
        ("--max-workers", "2", "--expected-rate", "inf"),
        ("--max-workers", "2", "--max-cost", "10"),
        ("--max-workers", "2", "--worker-cost", "10", "--max-cost", "9"),
        ("--max-workers", "2", "--worker-cost", "ten", "--max-cost", "9"),
    ],
)
def test_settings_that_cannot_be_are_refused(database: str, api_key: str, options: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        run("models", "scale", "tiny", *options, TOKENMILL_DATABASE_URL=database)
    assert "\t–\t" in run("models", "list", TOKENMILL_DATABASE_URL=database).stdout


@pytest.mark.usefixtures("quick_processes")
def test_a_scaler_of_no_model_ends_with_one_sentence(database: str, api_key: str) -> None:
    done = typed(
        *("autoscale", "--model", "absent", "--command", "true {workers}"),
        variables={"TOKENMILL_DATABASE_SCALER_URL": database},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "'absent' does not exist" in done.stderr
