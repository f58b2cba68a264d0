"""Tests of `tokenmill files upload` with a file in parts: after a kill it continues with the missing ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cli.disk import upload
from tests.cli.service import Service, clean_environment

PART = 1000
KILLED_AFTER = 3
PROGRAM = """
import os, signal, sys
from cli.disk import upload
from cli.main import main
from openai.resources.uploads.parts import Parts
upload.PART_BYTES, allowed, create, sent = int(sys.argv.pop(1)), int(sys.argv.pop(1)), Parts.create, []
def counted(self, *arguments, **fields):
    if len(sent) == allowed:
        os.kill(os.getpid(), signal.SIGKILL)
    sent.append(create(self, *arguments, **fields))
    return sent[-1]
Parts.create = counted
try:
    main()
finally:
    print(f"{len(sent)} sent", file=sys.stderr)
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.bin"
    path.write_bytes(b"".join(bytes([number % 5]) * PART for number in range(9)) + b"end")
    return path


@pytest.fixture
def variables(service: Service, tmp_path: Path) -> dict[str, str]:
    names = {"TOKENMILL_BASE_URL": service.base_url, "TOKENMILL_API_KEY": service.api_key}
    return clean_environment(**names, TOKENMILL_DATA_DIR=str(tmp_path / "data"))


def send(path: Path, variables: dict[str, str], *, allowed: int = 100) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(PART), str(allowed), "files", "upload", str(path)]
    return subprocess.run(
        [*command, "--purpose", "user_data"], capture_output=True, text=True, check=False, timeout=120, env=variables
    )


def content_of(file_id: str, variables: dict[str, str]) -> bytes:
    headers = {"authorization": f"Bearer {variables['TOKENMILL_API_KEY']}"}
    return httpx.get(f"{variables['TOKENMILL_BASE_URL']}/files/{file_id.strip()}/content", headers=headers).content


def test_a_killed_upload_goes_on_with_the_parts_that_have_not_come(large: Path, variables: dict[str, str]) -> None:
    killed = send(large, variables, allowed=KILLED_AFTER)
    assert killed.returncode == -signal.SIGKILL
    again = send(large, variables)
    assert again.returncode == 0, again.stderr
    assert f"{KILLED_AFTER} parts already sent" in again.stderr
    assert f"{10 - KILLED_AFTER} sent" in again.stderr
    assert content_of(again.stdout, variables) == large.read_bytes()
    assert "10 sent" in send(large, variables).stderr, "another upload of it is another file"


def test_a_file_that_was_changed_meanwhile_begins_anew(large: Path, variables: dict[str, str]) -> None:
    send(large, variables, allowed=KILLED_AFTER)
    large.write_bytes(large.read_bytes()[::-1])
    os.utime(large, ns=(1, 1))
    again = send(large, variables)
    assert "10 sent" in again.stderr
    assert content_of(again.stdout, variables) == large.read_bytes()


def test_a_small_file_goes_in_one_piece(large: Path, variables: dict[str, str]) -> None:
    large.write_bytes(b"x" * PART)
    done = send(large, variables)
    assert "0 sent" in done.stderr
    assert content_of(done.stdout, variables) == b"x" * PART


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    path = tmp_path / "closed"
    path.write_text("no folder")
    return path


def test_where_nothing_can_be_noted_the_file_is_sent_all_the_same(
    large: Path, variables: dict[str, str], closed: Path
) -> None:
    done = send(large, variables | {"TOKENMILL_DATA_DIR": str(closed)})
    assert done.returncode == 0, done.stderr
    assert content_of(done.stdout, variables) == large.read_bytes()


def test_a_part_is_as_large_as_the_server_takes() -> None:
    from jobs.uploads.records import MAX_PART_BYTES

    assert upload.PART_BYTES == MAX_PART_BYTES
