"""Tests of the ends of commands that wait for a batch or read it: failures, truncations, and the exit status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobs.chunks.recording import LineResult
from tests.cli.service import Service, completed, failed, typed, write_lines

CUT = "2 answers were truncated: ended by max_tokens or the context (finish_reason length)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("input")


def worked_off(service: Service, folder: Path, results: Sequence[LineResult]) -> str:
    path = write_lines(folder / "in.jsonl", count=len(results))
    batch_id = service.run("batch", "create", path).stdout.strip()
    service.work_off(batch_id, results)
    return batch_id


@pytest.fixture(scope="module")
def mixed(service: Service, folder: Path) -> str:
    """A batch with two truncated answers, a complete one, and three failures."""
    failures = [failed(3, code="too_long"), failed(4, code="engine_failure"), failed(5, code="too_long")]
    answers = [completed(0), completed(1, finish_reason="length"), completed(2, finish_reason="length")]
    return worked_off(service, folder, [*answers, *failures])


@pytest.fixture(scope="module")
def all_failed(service: Service, folder: Path) -> str:
    return worked_off(service, folder, [failed(0, code="too_long")])


def test_a_batch_tells_how_many_answers_were_cut_short(service: Service, mixed: str) -> None:
    counts = json.loads(service.run("batch", "show", mixed, "--json").stdout)["request_counts"]
    assert counts == {"total": 6, "completed": 3, "failed": 3, "truncated": 2}
    assert "2 of the done: an answer ended by max_tokens" in service.run("batch", "show", mixed).stdout


def test_watch_sums_up_failures_by_code_and_what_was_cut_short(service: Service, mixed: str) -> None:
    done = service.run("batch", "watch", mixed)
    outcome, codes, cut, why = done.stdout.splitlines()
    assert outcome.startswith("completed with failures: 3 done, 3 failed of 6")
    assert codes == "  failed lines: too_long 2, engine_failure 1"
    assert cut == f"  {CUT}"
    assert why.startswith("  why lines failed: tokenmill files download file_")
    assert done.exit_code == 0


def test_results_say_beside_the_lines_what_they_are(service: Service, mixed: str, tmp_path: Path) -> None:
    printed = service.run("batch", "results", mixed)
    assert len(printed.stdout.splitlines()) == 6
    assert printed.stderr.splitlines() == ["  failed lines: too_long 2, engine_failure 1", f"  {CUT}"]
    written = service.run("batch", "results", mixed, "-o", tmp_path / "out.jsonl")
    assert written.stderr.splitlines()[0] == f"3 done, 3 failed, written to {tmp_path / 'out.jsonl'}"
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize("command", ["watch", "results"])
def test_failed_lines_fail_the_command_where_that_is_asked_for(service: Service, mixed: str, command: str) -> None:
    assert service.run("batch", command, mixed).exit_code == 0
    assert service.run("batch", command, mixed, "--fail-on-errors").exit_code == 3
    assert "status 3" in " ".join(service.run("batch", command, "--help").stdout.split())


@pytest.mark.usefixtures("quick_processes")
def test_a_batch_whose_every_line_failed_is_no_success(service: Service, all_failed: str) -> None:
    done = typed("batch", "watch", all_failed, variables=service.variables)
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "all lines failed: 0 done, 1 failed of 1")
    assert typed("batch", "watch", all_failed, "--fail-on-errors", variables=service.variables).returncode == 3


def test_a_good_batch_passes_with_the_flag(service: Service, folder: Path) -> None:
    batch_id = worked_off(service, folder, [completed(0)])
    done = service.run("batch", "watch", batch_id, "--fail-on-errors")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 1)
    assert service.run("batch", "results", batch_id, "--fail-on-errors").exit_code == 0


def test_the_end_is_told_where_the_error_file_is_gone(service: Service, folder: Path) -> None:
    batch_id = worked_off(service, folder, [completed(0), failed(1, code="too_long")])
    batch = json.loads(service.run("batch", "show", batch_id, "--json").stdout)
    service.run("files", "delete", batch["error_file_id"])
    done = service.run("batch", "watch", batch_id)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "completed with failures: 1 done, 1 failed of 2")
