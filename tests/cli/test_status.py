"""Tests of `tokenmill status`, `top` and `logs`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from cli.embedded import note
from cli.embedded.processes import RoleProcess
from cli.status.commands import status
from cli.status.report import Sample, ServiceReport
from jobs.errors import InputError
from tests.cli.service import Service, clean_environment, run


def test_status_of_a_server_tells_health_queue_and_workers(service: Service, batch_file: Path) -> None:
    service.validate(service.run("batch", "create", batch_file).stdout.strip())
    service.worker_lives(num_requests_running=3, num_requests_waiting=1, generation_tokens_total=12_345)
    done = service.run("status")
    title, *rows = done.stdout.splitlines()
    assert (done.exit_code, title) == (0, f"{service.base_url}, models: tiny")
    assert "tiny\tnormal\t0\t3\t0\t0\t" in rows
    assert "tiny\ttokenmill\t3\t1\t0%\t12345\thand" in rows
    assert "open\t0\t1\t0\t0" in rows


def test_status_tells_of_a_worker_that_has_taken_itself_out_and_fails(service: Service) -> None:
    service.worker_lives(num_requests_running=0, out_reason="no numbers")
    done = service.run("status")
    assert done.exit_code == 1
    problem = done.stdout.splitlines()[-1]
    assert "no numbers" in problem
    assert "tokenmill workers resume hand" in problem


def test_status_fails_with_the_reason_where_the_server_is_not_ready(service: Service, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"cannot reach http://127\.0\.0\.1:1/v1"):
        service.run("status", TOKENMILL_DATA_DIR=str(tmp_path), TOKENMILL_BASE_URL="http://127.0.0.1:1/v1")


def test_status_calls_work_on_documents_so_and_names_no_model_for_it() -> None:
    labels = {"model": ":prepare"}
    queue = Sample(name="tokenmill_chunk_lines", labels=labels | {"priority": "normal", "state": "ready"}, value=3)
    worker = Sample(name="tokenmill_engine_num_requests_running", labels=labels | {"worker": "w"}, value=0)
    report = ServiceReport(title="", problems=[], samples=[queue, worker])
    assert [rows[0][0] for _, rows in report.sections()] == ["documents", "documents"]


def test_status_tells_between_which_moments_the_queue_of_a_class_ends() -> None:
    queue = {"model": "m", "priority": "normal"}
    bounds = {"earliest": 540.0, "expected": 720.0, "latest": 1200.0}
    samples = [
        Sample(name="tokenmill_chunk_lines", labels={**queue, "state": "ready"}, value=64),
        Sample(name="tokenmill_chunk_lines", labels={"model": "m", "priority": "bulk", "state": "ready"}, value=5),
        *[
            Sample(name="tokenmill_queue_end_seconds", labels={**queue, "bound": bound}, value=seconds)
            for bound, seconds in bounds.items()
        ],
    ]
    ((header, rows),) = ServiceReport(title="", problems=[], samples=samples).sections()
    assert header[-1] == "ends in"
    assert [row[-1] for row in rows] == ["", "0:09:00 to 0:20:00"]


def test_top_shows_tokens_per_second_between_two_looks() -> None:
    def look(tokens: float, seen_at: float) -> ServiceReport:
        labels = {"worker": "w", "model": "m"}
        samples = [Sample(name="tokenmill_engine_generation_tokens_total", labels=labels, value=tokens)]
        return ServiceReport(title="", problems=[], samples=samples, seen_at=seen_at)

    ((header, rows),) = look(700, 12.0).sections(look(100, 10.0))
    assert (header[-2], rows[0][-2]) == ("tok/s", "300")
    ((header, rows),) = look(700, 12.0).sections()
    assert "tok/s" not in header


def test_a_terminal_shows_the_id_of_a_process_as_other_commands_take_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    roles = [RoleProcess(name="api", pid=1_234_567, started_at=0.0, memory_bytes=2**30)]
    report = ServiceReport(title="here", problems=[], roles=roles)
    monkeypatch.setattr("cli.status.commands.report_of_service", lambda _: report)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    status(Path())
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["api", "running", "1234567"]


def test_top_needs_a_terminal() -> None:
    with pytest.raises(InputError, match="tokenmill status"):
        run("top")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "api.log").write_text("".join(f"api {number}\n" for number in range(30)))
    (folder / "worker.log").write_text("loaded\n")
    return folder


def test_logs_show_the_end_of_each_role_or_of_one(logs: Path, tmp_path: Path) -> None:
    everything = run("logs", "-n", "2", "--data-dir", tmp_path).stdout
    assert everything == "api    | api 28\napi    | api 29\nworker | loaded\n"
    assert run("logs", "api", "-n", "1", "--data-dir", tmp_path).stdout == "api 29\n"
    with pytest.raises(InputError, match="there are logs of api, worker"):
        run("logs", "apo", "--data-dir", tmp_path)


@contextmanager
def followed(data_dir: Path) -> Iterator[IO[str]]:
    """The output of `tokenmill logs worker -f`, line by line, in a process that is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "logs", "worker", "-f", "--data-dir", data_dir],
        stdout=subprocess.PIPE, text=True, env=clean_environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


@pytest.mark.usefixtures("quick_processes")
def test_followed_logs_go_on_also_after_the_log_was_emptied(logs: Path, tmp_path: Path) -> None:
    log = logs / "worker.log"
    with followed(tmp_path) as shown:
        assert shown.readline() == "loaded\n"
        with log.open("a") as file:
            file.write("first\nhalf")
        assert shown.readline() == "first\n"
        log.write_text("anew\n")
        assert shown.readline() == "anew\n"


@pytest.mark.usefixtures("quick_processes")
def test_a_followed_log_shows_the_line_that_is_being_written_once_it_is_whole(logs: Path, tmp_path: Path) -> None:
    log = logs / "worker.log"
    log.write_text("loaded\nha")
    assert run("logs", "worker", "--data-dir", tmp_path).stdout == "loaded\nha\n"
    with followed(tmp_path) as shown:
        assert shown.readline() == "loaded\n"
        with log.open("a") as file:
            file.write("lf\n")
        assert shown.readline() == "half\n"


def test_looking_at_a_folder_where_nothing_was_noted_takes_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(note, "_is_locked", lambda _: pytest.fail("a stack that starts would be refused meanwhile"))
    assert note.running_stack_of(tmp_path) is None
