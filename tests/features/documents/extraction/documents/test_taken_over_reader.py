"""Tests of hostile code inside a reader: its attempts fail, and it neither reads nor changes others' documents."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from confined import landlock
from features.documents.extraction.course.cutting_child import MODULE as CUTTER
from features.documents.extraction.course.grounding_child import MODULE as GROUNDER
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.documents.process.drawn_pages import MODULE as DRAWER
from features.documents.extraction.documents.process.reading_process import READER, ReadingProcess, start_warm
from features.documents.extraction.errors import DocumentCode, DocumentError
from tests.features.documents.extraction.documents import attacker

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="what refuses is Linux' kernel"),
]
VICTIM = [sys.executable, "-m", "tests.features.documents.extraction.documents.victim"]
SECRET = "postgresql://tokenmill:secret@localhost/tokenmill"
REFUSED = {"EACCES", "EPERM", "ENOSYS"}


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """The outcomes of all attacks together, in a worker that does not run as root."""
    environment = {**os.environ, "TOKENMILL_DATABASE_URL": SECRET}
    done = subprocess.run(VICTIM, capture_output=True, env=environment, check=True, timeout=120)
    found: dict[str, Any] = orjson.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", attacker.ATTACKS)
def test_an_attack_from_inside_a_reader_is_refused(seen: dict[str, Any], name: str) -> None:
    assert seen["outcomes"][name][0] in REFUSED


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("name", attacker.READS)
def test_a_reader_sees_no_file_and_no_process(seen: dict[str, Any], name: str) -> None:
    assert seen["outcomes"][name][0] in REFUSED


def test_an_attack_leaves_the_worker_its_files_and_its_neighbours_as_they_were(seen: dict[str, Any]) -> None:
    assert seen["secret"] == "s" * len(attacker.WRITTEN)
    assert (seen["files"], seen["kept"], seen["mode"]) == (["kept"], "kept", seen["mode_before"])
    assert seen["stranger"] == psutil.STATUS_SLEEPING
    assert seen["left"] == []


def test_a_reader_has_nothing_of_its_workers_environment_and_may_run_threads(seen: dict[str, Any]) -> None:
    _, (_, names, descriptors) = seen["outcomes"]["who"]
    assert descriptors == [0, 1, 2], "what it reads, what it answers to, and nothing"
    assert [name for name in names if name.startswith("TOKENMILL")] == []
    assert seen["outcomes"]["run a thread"] == ["done", "thread"]


def test_readers_end_with_a_worker_that_is_killed_though_they_hang_and_cancel_their_signals() -> None:
    with subprocess.Popen([*VICTIM, "hang"], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        ids = [int(each) for each in worker.stdout.readline().split()]
        readers = [psutil.Process(each) for each in ids]
        worker.kill()
    assert len(ids) >= 2
    _, alive = psutil.wait_procs(readers, timeout=60)
    assert alive == []


@pytest.fixture
def reader() -> Iterator[DocumentReader]:
    with DocumentReader(Limits(seconds=60), module=attacker.MODULE) as made:
        yield made


@pytest.mark.parametrize(
    ("bob", "alice"), [(None, None), ("bob", "alice")], ids=["a document a process", "an owner's documents a process"]
)
def test_a_reader_that_bob_takes_over_answers_alice_as_ever_and_tells_bob_nothing_of_hers(
    reader: DocumentReader, bob: str | None, alice: str | None
) -> None:
    reader.read_stored(b"{}", "take over", owner=bob)
    assert reader.read_stored(b"total 12.50", "echo", owner=alice) == b"total 12.50"
    assert orjson.loads(reader.read_stored(b"{}", "tell what was read", owner=bob)) == ["done", []]


def test_a_reader_that_is_taken_over_answers_its_owner_as_it_likes(reader: DocumentReader) -> None:
    """Shows that the test above would fail if the process were the same one."""
    reader.read_stored(b"{}", "take over", owner="bob")
    assert reader.read_stored(b"total 12.50", "echo", owner="bob") == b"total 99.99"
    assert orjson.loads(reader.read_stored(b"{}", "tell what was read", owner="bob")) == ["done", ["total 12.50"]]


@pytest.mark.parametrize("name", attacker.NONSENSE)
def test_what_no_reader_answers_is_the_documents_error_and_the_next_one_is_read(
    reader: DocumentReader, name: str
) -> None:
    with pytest.raises(DocumentError) as refused:
        reader.read_stored(b"{}", name)
    assert refused.value.code == DocumentCode.PARSER_DIED
    assert reader.read_stored(b"total 12.50", "echo") == b"total 12.50"


def status_of(process_id: int) -> dict[str, str]:
    lines = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize("module", [READER, DRAWER, GROUNDER, CUTTER])
def test_whatever_is_done_with_strangers_bytes_is_done_under_the_filter_without_capabilities(module: str) -> None:
    with contextlib.ExitStack() as stack:
        warm = start_warm(module)
        stack.callback(warm.end)
        ReadingProcess.fork(warm, Limits())
        children: list[psutil.Process] = []
        while not children:
            children = psutil.Process(warm.process_id).children()
        while (status := status_of(children[0].pid))["Seccomp"] != "2":
            assert children[0].is_running(), "it has ended unconfined"
        assert status["NoNewPrivs"] == "1"
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0


def test_a_killed_process_that_forks_readers_takes_them_along(reader: DocumentReader) -> None:
    reader.read_stored(b"{}", "echo", owner="alice")
    process_id = reader.process_id
    assert process_id is not None
    readers = psutil.Process(process_id).children()
    assert len(readers) == 1
    os.kill(process_id, signal.SIGKILL)
    assert psutil.wait_procs(readers, timeout=60)[1] == []
    assert reader.read_stored(b"total 12.50", "echo", owner="alice") == b"total 12.50"
