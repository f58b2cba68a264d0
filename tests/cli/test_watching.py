"""`tokenmill batch watch` as a user leaves it: what it says of a batch that waits, and what Ctrl-C does not end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from openai import APIConnectionError

from cli.watch import watch_batch
from tests.cli.service import Service, clean_environment


def test_a_batch_that_waits_says_for_what_and_goes_on_after_ctrl_c(service: Service, batch_file: Path) -> None:
    batch_id = service.run("batch", "create", batch_file).stdout.strip()
    service.validate(batch_id)
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "batch", "watch", batch_id],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(**service.variables),
    ) as process:  # fmt: skip
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=60)
    assert first.startswith("No running worker serves the model 'tiny'.")
    assert said.splitlines()[-2:] == [
        f"{batch_id} goes on. Watch it again: tokenmill batch watch {batch_id}",
        f"Cancel it: tokenmill batch cancel {batch_id}",
    ]
    assert (process.returncode, printed) == (130, "")
    assert service.run("batch", "show", batch_id).stdout.splitlines()[0].split() == ["status", "in_progress"]


def test_a_server_that_goes_away_for_a_while_is_told_once_with_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    request: Any = httpx.Request("GET", "http://host/v1")
    lost = APIConnectionError(request=request)
    lost.__cause__ = OSError("Network is unreachable")
    others = dict.fromkeys(("request_counts", "usage", "failed_at", "expired_at", "cancelled_at"))
    ended = SimpleNamespace(status="completed", created_at=7, completed_at=7, **others)
    answers: list[Any] = [lost, lost, ended]

    def retrieve(_: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    client: Any = SimpleNamespace(base_url="http://host/v1/", batches=SimpleNamespace(retrieve=retrieve))
    assert watch_batch(client, "batch_1") is ended
    assert capsys.readouterr().err == (
        "http://host/v1/ does not answer (Network is unreachable); trying again for 60 s\n"
    )
