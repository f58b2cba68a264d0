"""Tests of the reported cause of a program's end: a full disk or a lost network, whatever its log's last line is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.embedded.causes import cause_of
from cli.embedded.child import Child, ChildSpec
from jobs.errors import ServiceError


def child_that_says(folder: Path, script: str) -> Child:
    log = folder / "worker.log"
    return Child(ChildSpec(name="worker", command=["/bin/sh", "-c", script], log_path=log, is_ready=lambda: False))


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("httpx.ConnectError: [Errno -2] Name or service not known", "the network was lost, or a host in it"),
    ],
)
def test_the_cause_is_told_and_not_the_last_line_of_the_log(tmp_path: Path, line: str, cause: str) -> None:
    child = child_that_says(tmp_path, f"echo '{line}'; echo 'ERROR: could not finish'; exit 3")
    child.start()
    with pytest.raises(ServiceError, match=rf"worker stopped while starting: {cause}.*\(.*more in"):
        child.wait_until_ready()


def test_what_an_earlier_life_wrote_is_no_cause_of_this_end(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text("No space left on device\n")
    child = child_that_says(tmp_path, "exit 3")
    child.start()
    with pytest.raises(ServiceError, match="no output"):
        child.wait_until_ready()


def test_a_full_disk_is_told_where_nothing_could_be_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cause_of("", tmp_path) is None
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4096))
    assert cause_of("", tmp_path) == f"the disk of {tmp_path} is full; free space there"
