"""Tests of `tokenmill batch results -o`: an existing file survives any failure before the new one is complete."""

from __future__ import annotations

import os
import resource
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cli.service import Service, completed, typed, write_lines

MAX_FILE_BYTES = 1 << 20


@pytest.fixture(scope="module")
def batch_id(service: Service, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A batch with an answer of 2 MiB."""
    path = write_lines(tmp_path_factory.mktemp("input") / "in.jsonl", count=1)
    made = service.run("batch", "create", path).stdout.strip()
    service.work_off(made, [completed(0, content="x" * 2 * MAX_FILE_BYTES)])
    return made


def test_a_full_disk_leaves_the_file_that_was_there_and_is_told_in_a_sentence(
    service: Service, batch_id: str, tmp_path: Path
) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("good")
    done = typed(
        "batch", "results", batch_id, "-o", target,
        preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES)),
        variables=service.variables,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        f"tokenmill: File too large: {target}. Free space or grant access, then try again.\n",
    )
    assert target.read_text() == "good"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.usefixtures("quick_processes")
def test_a_server_that_goes_away_leaves_the_file_that_was_there(
    service: Service, batch_id: str, tmp_path: Path
) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("good")
    done = typed(
        "batch",
        "results",
        batch_id,
        "-o",
        target,
        variables=service.variables | {"TOKENMILL_BASE_URL": "http://127.0.0.1:1/v1"},
    )
    assert done.returncode == 1
    assert target.read_text() == "good"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_results_take_the_place_of_an_earlier_copy_also_behind_a_link(
    service: Service, batch_id: str, tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    copy, link = tmp_path / "kept" / "out.jsonl", tmp_path / "link.jsonl"
    copy.write_text("earlier")
    link.symlink_to(copy)
    assert service.run("batch", "results", batch_id, "-o", link).exit_code == 0
    assert link.is_symlink()
    assert copy.stat().st_size > 2 * MAX_FILE_BYTES


def test_results_go_through_a_pipe_as_they_come(service: Service, batch_id: str, tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[int]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(len(pipe.read_bytes())))
    reader.start()
    assert service.run("batch", "results", batch_id, "-o", pipe).exit_code == 0
    reader.join(60)
    assert read[0] > 2 * MAX_FILE_BYTES
    assert pipe.is_fifo()


class _Breaks(BaseHTTPRequestHandler):
    """Announces more bytes than it sends."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b"half")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.usefixtures("quick_processes")
def test_a_file_that_breaks_off_is_told_in_a_sentence_and_leaves_the_one_that_was_there(
    service: Service, tmp_path: Path
) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("good")
    with HTTPServer(("127.0.0.1", 0), _Breaks) as server:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        done = typed(
            "files", "download", "file_1", "-o", target, variables=service.variables | {"TOKENMILL_BASE_URL": url}
        )
        thread.join()
    assert done.returncode == 1
    assert done.stderr.startswith(f"tokenmill: cannot reach {url}/ (peer closed connection"), done.stderr
    assert done.stderr.count("\n") == 1
    assert target.read_text() == "good"
