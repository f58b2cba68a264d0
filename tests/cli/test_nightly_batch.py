"""Tests of examples/cron/nightly_batch as run by cron: quiet on success, loud otherwise, one batch per day and file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import openai
import pytest

from jobs.chunks.recording import LineResult
from jobs.settings import Settings
from tests.cli.service import LINE, ROOT, Service, clean_environment, completed, failed, write_lines

pytestmark = pytest.mark.long

SCRIPT = ROOT / "examples" / "cron" / "nightly_batch"
DAY = "2026-11-26"
TOO_MANY = Settings().max_invalid_lines + 1
NOWHERE = {"TOKENMILL_BASE_URL": "http://127.0.0.1:1/v1", "TOKENMILL_API_KEY": "tm-x"}
Answer = Callable[[int, str], Sequence[LineResult]]
"""Results of the first, second … new batch, by its number and its id."""


@pytest.fixture(autouse=True)
def crons_path(quick_commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{quick_commands}:/usr/local/bin:/usr/bin:/bin")


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    """A file only for this test."""
    return write_lines(tmp_path / "requests.jsonl", 2, prompt=tmp_path.name)


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=service.base_url, api_key=service.api_key) as client:
        yield client


@contextmanager
def job(
    requests: Path, folder: Path, *, variables: Mapping[str, str], day: str = DAY
) -> Iterator[subprocess.Popen[str]]:
    """Start the job as cron does, on a day of its own calendar."""
    commands = folder.parent / f"commands-{day}"
    commands.mkdir(exist_ok=True)
    (commands / "date").write_text(f"#!/bin/sh\necho {day}\n")
    (commands / "date").chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    process = subprocess.Popen(
        [SCRIPT, requests, folder],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=clean_environment(**variables, PATH=path),
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=200)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(requests: Path, folder: Path, *, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the job without anything processing its batches."""
    with job(requests, folder, variables=variables) as process:
        return ended(process)


def night(
    service: Service, requests: Path, folder: Path, *, answer: Answer, day: str = DAY
) -> subprocess.CompletedProcess[str]:
    """Run the job while its batches are processed."""
    with hand(service, answer), job(requests, folder, variables=service.variables, day=day) as process:
        return ended(process)


@contextmanager
def hand(service: Service, answer: Answer) -> Iterator[None]:
    is_over = threading.Event()
    thread = threading.Thread(target=work_off, args=(service, answer, is_over))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def work_off(service: Service, answer: Answer, is_over: threading.Event) -> None:
    """Act as workers for every batch that is not validated yet."""
    number = 0
    with openai.OpenAI(base_url=service.base_url, api_key=service.api_key) as client:
        while not is_over.is_set():
            for batch in client.batches.list(limit=5):
                if batch.status == "validating":
                    service.validate(batch.id)
                    if client.batches.retrieve(batch.id).status == "in_progress":
                        service.answer(batch.id, answer(number, batch.id))
                        service.finish(batch.id)
                    number += 1
            time.sleep(0.2)


def all_well(number: int, batch_id: str) -> list[LineResult]:
    return [completed(0), completed(1)]


def num_batches(client: openai.OpenAI) -> int:
    return len(list(client.batches.list()))


def answers(folder: Path, name: str = "answers") -> list[Path]:
    return sorted(folder.glob(f"*/*/{name}.jsonl"))


def test_a_good_night_is_quiet_and_a_second_start_submits_and_keeps_nothing_new(
    service: Service, client: openai.OpenAI, requests: Path, tmp_path: Path
) -> None:
    batches, files = num_batches(client), len(list(client.files.list()))
    for _ in range(2):
        done = night(service, requests, tmp_path / "nights", answer=all_well)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert num_batches(client) == batches + 1
    assert len(list(client.files.list())) == files + 2, "its input and its output"
    (kept,) = answers(tmp_path / "nights")
    assert len(kept.read_text().splitlines()) == 2
    assert kept.parent.parent.name == DAY


def test_another_file_and_another_day_have_a_batch_and_answers_of_their_own(
    service: Service, client: openai.OpenAI, requests: Path, tmp_path: Path
) -> None:
    before = num_batches(client)
    other = write_lines(tmp_path / "other.jsonl", 1, prompt=tmp_path.name)
    assert night(service, requests, tmp_path / "nights", answer=all_well).returncode == 0
    assert night(service, other, tmp_path / "nights", answer=lambda *_: [completed(0)]).returncode == 0
    assert night(service, requests, tmp_path / "nights", answer=all_well, day="2026-11-27").returncode == 0
    assert num_batches(client) == before + 3
    found = answers(tmp_path / "nights")
    kept = {
        (path.parent.parent.name, path.parent.name.split("-")[0]): len(path.read_text().splitlines()) for path in found
    }
    assert kept == {(DAY, "requests"): 2, (DAY, "other"): 1, ("2026-11-27", "requests"): 2}


def test_a_batch_that_failed_validation_is_not_sent_again_and_the_corrected_file_is(
    service: Service, client: openai.OpenAI, requests: Path, tmp_path: Path
) -> None:
    good = requests.read_text()
    bad = (json.dumps({**LINE, "custom_id": str(number), "body": {"model": "tiny"}}) for number in range(TOO_MANY))
    requests.write_text("\n".join(bad))
    before = num_batches(client)
    for _ in range(2):
        done = night(service, requests, tmp_path / "nights", answer=all_well)
        assert (done.returncode, "failed validation" in done.stderr) == (2, True), done.stderr
    assert num_batches(client) == before + 1
    requests.write_text(good)
    assert night(service, requests, tmp_path / "nights", answer=all_well).returncode == 0
    assert num_batches(client) == before + 2


def test_a_line_that_succeeds_at_its_second_try_is_no_news(service: Service, requests: Path, tmp_path: Path) -> None:
    def heals(number: int, batch_id: str) -> list[LineResult]:
        return [completed(0)] if number else [completed(0), failed(1, code="engine_failure", batch_id=batch_id)]

    done = night(service, requests, tmp_path / "nights", answer=heals)
    assert (done.returncode, done.stderr) == (0, "")
    (again,) = answers(tmp_path / "nights", "again")
    assert len(again.read_text().splitlines()) == 1


def test_lines_that_fail_twice_are_told_with_their_codes_and_not_sent_a_third_time(
    service: Service, client: openai.OpenAI, requests: Path, tmp_path: Path
) -> None:
    def fails(number: int, batch_id: str) -> list[LineResult]:
        bad = failed(0 if number else 1, code="engine_failure", batch_id=batch_id)
        return [bad] if number else [completed(0), bad]

    before = num_batches(client)
    for _ in range(2):
        done = night(service, requests, tmp_path / "nights", answer=fails)
        assert done.returncode == 3
        assert "engine_failure" in done.stderr
    assert num_batches(client) == before + 2


def test_lines_that_were_refused_for_what_they_say_are_not_sent_again(
    service: Service, client: openai.OpenAI, requests: Path, tmp_path: Path
) -> None:
    refused = {**LINE, "custom_id": "1", "body": {"model": "tiny"}}
    requests.write_text(f"{requests.read_text().splitlines()[0]}\n{json.dumps(refused)}\n")
    before = num_batches(client)
    done = night(service, requests, tmp_path / "nights", answer=lambda *_: [completed(0)])
    assert done.returncode == 3
    assert num_batches(client) == before + 1


def test_lines_that_were_refused_are_told_of_even_where_all_others_succeed_at_their_second_try(
    service: Service, requests: Path, tmp_path: Path
) -> None:
    refused = {**LINE, "custom_id": "2", "body": {"model": "tiny"}}
    requests.write_text(requests.read_text() + json.dumps(refused) + "\n")

    def heals(number: int, batch_id: str) -> list[LineResult]:
        return [completed(0)] if number else [completed(0), failed(1, code="engine_failure", batch_id=batch_id)]

    done = night(service, requests, tmp_path / "nights", answer=heals)
    assert done.returncode == 3
    assert len(answers(tmp_path / "nights", "again")) == 1


def test_a_cancelled_batch_is_told_of_with_what_is_finished_and_not_sent_again(
    service: Service, client: openai.OpenAI, requests: Path, tmp_path: Path
) -> None:
    before = num_batches(client)
    with job(requests, tmp_path / "nights", variables=service.variables) as process:
        service.cancel(submitted(client, before), [completed(0)])
        assert ended(process).returncode == 4
    assert run(requests, tmp_path / "nights", variables=service.variables).returncode == 4
    assert num_batches(client) == before + 1
    (kept,) = answers(tmp_path / "nights")
    assert '"custom_id":"0"' in kept.read_text()


def submitted(client: openai.OpenAI, before: int) -> str:
    """Return the id of the next batch, once it exists."""
    deadline = time.monotonic() + 100
    while num_batches(client) == before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return next(iter(client.batches.list(limit=1))).id


def test_a_killed_job_that_is_started_again_goes_on_with_its_batch(
    service: Service, client: openai.OpenAI, requests: Path, tmp_path: Path
) -> None:
    before = num_batches(client)
    with job(requests, tmp_path / "nights", variables=service.variables):
        batch_id = submitted(client, before)
        second = run(requests, tmp_path / "nights", variables=service.variables)
        assert second.returncode == 75, "the first one still works on it"
    done = night(service, requests, tmp_path / "nights", answer=all_well)
    assert (done.returncode, done.stderr) == (0, "")
    assert num_batches(client) == before + 1
    assert client.batches.retrieve(batch_id).status == "completed"


def test_answers_that_cannot_be_kept_fail_the_job_and_are_kept_by_the_next_start(
    service: Service, client: openai.OpenAI, requests: Path, tmp_path: Path
) -> None:
    def blocks(number: int, batch_id: str) -> list[LineResult]:
        (folder,) = (tmp_path / "nights").glob("*/*")
        (folder / "answers.jsonl").mkdir()
        return all_well(number, batch_id)

    before = num_batches(client)
    done = night(service, requests, tmp_path / "nights", answer=blocks)
    assert done.returncode == 1
    assert "answers.jsonl" in done.stderr
    answers(tmp_path / "nights")[0].rmdir()
    assert night(service, requests, tmp_path / "nights", answer=all_well).returncode == 0
    assert num_batches(client) == before + 1


def test_a_job_without_a_server_says_so_and_submits_the_next_time(
    service: Service, requests: Path, tmp_path: Path
) -> None:
    done = run(requests, tmp_path / "nights", variables=NOWHERE)
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert night(service, requests, tmp_path / "nights", answer=all_well).returncode == 0


def test_a_job_that_the_server_refuses_ends_with_another_status_than_one_without_a_server(
    service: Service, client: openai.OpenAI, requests: Path, tmp_path: Path
) -> None:
    before = num_batches(client)
    refused = {**service.variables, "TOKENMILL_API_KEY": "tm-wrong"}
    done = run(requests, tmp_path / "nights", variables=refused)
    assert (done.returncode, "TOKENMILL_API_KEY" in done.stderr) == (2, True)
    requests.unlink()
    assert run(requests, tmp_path / "nights", variables=service.variables).returncode == 2
    assert num_batches(client) == before
