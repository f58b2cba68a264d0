"""examples/cron/nightly_batch as cron runs it: quiet when all is well, loud otherwise, one batch a day."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import openai
import pytest

from jobs.chunks.recording import LineResult
from tests.cli.service import ROOT, Service, clean_environment, completed, failed, write_lines

SCRIPT = ROOT / "examples" / "cron" / "nightly_batch"
Answer = Callable[[int, str], Sequence[LineResult]]
"""The results of the first, second … batch that comes, by its number and its id."""


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "requests.jsonl", 2)


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=service.base_url, api_key=service.api_key) as client:
        yield client


def night(service: Service, requests: Path, folder: Path, *, answer: Answer) -> subprocess.CompletedProcess[str]:
    """Run the job, while a hand works off what it submits."""
    variables = {**service.variables, "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}
    is_over = threading.Event()
    hand = threading.Thread(target=work_off, args=(service, answer, is_over))
    hand.start()
    try:
        return subprocess.run(
            [SCRIPT, requests, folder],
            capture_output=True, text=True, check=False, timeout=200, env=clean_environment(**variables),
        )  # fmt: skip
    finally:
        is_over.set()
        hand.join()


def work_off(service: Service, answer: Answer, is_over: threading.Event) -> None:
    """Do the workers' part for every batch that nobody has validated yet."""
    number = 0
    with openai.OpenAI(base_url=service.base_url, api_key=service.api_key) as client:
        while not is_over.is_set():
            for batch in client.batches.list(limit=5):
                if batch.status == "validating":
                    service.work_off(batch.id, answer(number, batch.id))
                    number += 1
            time.sleep(0.2)


def all_well(number: int, batch_id: str) -> list[LineResult]:
    return [completed(0), completed(1)]


def test_a_good_night_is_quiet_and_a_second_start_submits_nothing(
    service: Service, client: openai.OpenAI, requests: Path, tmp_path: Path
) -> None:
    before = len(list(client.batches.list()))
    for _ in range(2):
        done = night(service, requests, tmp_path / "nights", answer=all_well)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list(client.batches.list())) == before + 1
    (answers,) = tmp_path.glob("nights/*/answers.jsonl")
    assert len(answers.read_text().splitlines()) == 2


def test_a_line_that_succeeds_at_its_second_try_is_no_news(service: Service, requests: Path, tmp_path: Path) -> None:
    def heals(number: int, batch_id: str) -> list[LineResult]:
        return [completed(0)] if number else [completed(0), failed(1, code="engine_failure", batch_id=batch_id)]

    done = night(service, requests, tmp_path / "nights", answer=heals)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (again,) = tmp_path.glob("nights/*/again.jsonl")
    assert len(again.read_text().splitlines()) == 1


def test_lines_that_fail_twice_are_told_with_their_codes(service: Service, requests: Path, tmp_path: Path) -> None:
    def fails(number: int, batch_id: str) -> list[LineResult]:
        bad = failed(0 if number else 1, code="engine_failure", batch_id=batch_id)
        return [bad] if number else [completed(0), bad]

    done = night(service, requests, tmp_path / "nights", answer=fails)
    assert done.returncode == 3
    assert "engine_failure" in done.stderr


def test_answers_that_cannot_be_kept_fail_the_job(service: Service, requests: Path, tmp_path: Path) -> None:
    def blocks(number: int, batch_id: str) -> list[LineResult]:
        (day,) = (tmp_path / "nights").iterdir()
        (day / "answers.jsonl").mkdir()
        return all_well(number, batch_id)

    done = night(service, requests, tmp_path / "nights", answer=blocks)
    assert done.returncode == 1
    assert "answers.jsonl" in done.stderr


def test_a_job_without_a_server_says_so_and_submits_the_next_time(
    service: Service, requests: Path, tmp_path: Path
) -> None:
    nowhere = {"TOKENMILL_BASE_URL": "http://127.0.0.1:1/v1", "TOKENMILL_API_KEY": "tm-x"}
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        [SCRIPT, requests, tmp_path / "nights"],
        capture_output=True, text=True, check=False, timeout=100, env=clean_environment(PATH=path, **nowhere),
    )  # fmt: skip
    assert done.returncode != 0
    assert "127.0.0.1:1" in done.stderr
    assert night(service, requests, tmp_path / "nights", answer=all_well).returncode == 0
