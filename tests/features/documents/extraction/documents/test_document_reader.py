"""Tests of reading documents in their own process: one that hangs, grows or dies is only one failed document."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import PARSERS, parse
from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.documents.process.reading_process import ReaderDiedError, ReadingProcess
from features.documents.extraction.errors import DocumentCode, DocumentError
from lab.extraction.pages import make_pdf
from tests.features.documents.extraction.documents import builders

PDF = make_pdf(3, seed=1)
SLOW = b"<html>" + b"<div>" * 100_000  # the markup parser's time grows with the square of the depth


@pytest.fixture
def reader() -> Iterator[DocumentReader]:
    with DocumentReader(Limits(seconds=30, memory_bytes=1 << 30)) as made:
        yield made


def refusal(reader: DocumentReader, content: bytes, name: str = "a.html") -> DocumentError:
    with pytest.raises(DocumentError) as refused:
        reader.read(content, name)
    return refused.value


def test_the_process_reads_what_this_one_would(reader: DocumentReader) -> None:
    assert reader.read(PDF, "a.pdf") == parse(PDF, "a.pdf", Limits())
    assert reader.read(b"text", "b.txt").text == "text"


def test_the_process_says_what_it_reads_with(reader: DocumentReader) -> None:
    assert reader.parsers == PARSERS
    assert reader.read(b"a", "a.txt").parser in PARSERS


def readers_of(reader: DocumentReader) -> list[int]:
    """Return the processes that read or wait to read."""
    return [each.pid for each in psutil.Process(reader.process_id).children()]


def test_each_document_is_read_by_a_process_of_its_own_that_ends_with_it(reader: DocumentReader) -> None:
    reader.read(b"a", "a.txt")
    first = reader.process_id
    assert refusal(reader, b"", "b.txt").code == DocumentCode.EMPTY
    reader.read(b"c", "c.txt")
    assert reader.process_id == first
    left = psutil.Process(reader.process_id).children()
    assert psutil.wait_procs(left, timeout=60)[1] == []


def test_a_process_reads_the_documents_of_one_owner_in_a_row_so_many_at_most() -> None:
    with DocumentReader(Limits(documents_per_process=2)) as reader:
        ids: list[int] = []
        for owner in ("alice", "alice", "alice", "bob"):
            reader.read_stored(b"a", "a.txt", owner=owner)
            ids += readers_of(reader)
    assert len(set(ids)) == 3, "alice's first two documents had one process, her third and bob's one each"


def test_a_document_that_takes_too_long_fails_and_the_next_goes_on() -> None:
    with DocumentReader(Limits(seconds=1.5)) as reader:
        error = refusal(reader, SLOW)
        assert (error.code, str(error)) == (DocumentCode.TIME_LIMIT, "reading it takes more than 1.5 s; split it")
        assert reader.read(b"b", "b.txt").text == "b"


def test_a_pdf_that_takes_too_long_says_at_which_page() -> None:
    with DocumentReader(Limits(seconds=1, memory_bytes=8 << 30, base_memory_bytes=8 << 30)) as reader:
        error = refusal(reader, builders.endless_page(1), "a.pdf")
    assert (error.code, error.page) == (DocumentCode.TIME_LIMIT, 1)


def test_a_document_that_needs_too_much_memory_fails_and_the_next_goes_on() -> None:
    with DocumentReader(Limits(memory_bytes=1 << 30)) as reader:
        error = refusal(reader, b"\xc3\xa9" * 40_000_000, "a.txt")
        assert error.code == DocumentCode.MEMORY_LIMIT
        assert "more than 1024 MiB" in error.message
        assert reader.read(b"b", "b.txt").text == "b"


def test_a_process_that_died_before_does_not_harm_the_next_document(reader: DocumentReader) -> None:
    reader.read(b"a", "a.txt")
    first = reader.process_id
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert reader.read(PDF, "b.pdf").text.count("Total") == 1
    assert reader.process_id != first


def test_a_try_that_ended_by_no_fault_of_the_document_is_left_out_of_its_time(
    reader: DocumentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, tries, times = ReadingProcess.read, [False, True], [5.0, 0.25]

    def once_killed(process: ReadingProcess, content: bytes, name: str) -> bytes:
        if tries.pop(0):
            return read(process, content, name)
        raise ReaderDiedError(DocumentError(DocumentCode.PARSER_DIED, "killed"), is_by_document=False)

    monkeypatch.setattr(ReadingProcess, "read", once_killed)
    monkeypatch.setattr(ReadingProcess, "processor_seconds", lambda _: times.pop(0))
    assert reader.read(b"a", "a.txt").text == "a"
    assert (reader.seconds, times) == (0.25, [])
    tries, times = [False, False], [5.0, 5.0]
    assert refusal(reader, b"a", "a.txt").code == DocumentCode.PARSER_DIED
    assert reader.seconds == 0.25, "it was killed twice"


def test_the_time_of_each_of_an_owners_documents_is_its_own(reader: DocumentReader) -> None:
    before = 0.0
    times: list[float] = []
    for content in (b"a", b"some words\n" * 400_000, b"a"):
        reader.read_stored(content, "a.txt", owner="alice")
        times.append(reader.seconds - before)
        before = reader.seconds
    assert times[1] > times[2] > 0, "of the process, which reads on"


def test_a_file_over_the_limit_starts_no_process() -> None:
    with DocumentReader(Limits(max_bytes=3)) as reader:
        assert refusal(reader, b"four", "a.txt").code == DocumentCode.TOO_LARGE
        assert reader.process_id is None


def test_the_processes_end_with_their_reader(reader: DocumentReader) -> None:
    reader.read_stored(b"a", "a.txt", owner="alice")
    ids = [reader.process_id, *readers_of(reader)]
    reader.close()
    assert len(ids) == 2
    assert [each for each in ids if psutil.pid_exists(each or 0)] == []


def test_many_documents_leave_no_process_no_descriptor_and_no_memory() -> None:
    with DocumentReader() as reader:
        reader.read(PDF, "a.pdf")
        own, warm = psutil.Process(), psutil.Process(reader.process_id)
        before = [(each.num_fds(), each.memory_info().rss) for each in (own, warm)]
        for _ in range(100):
            reader.read_stored(PDF, "a.pdf")
        after = [(each.num_fds(), each.memory_info().rss) for each in (own, warm)]
    assert all(now <= then for (now, _), (then, _) in zip(after, before, strict=True)), "a collection may close others"
    assert after[1][1] - before[1][1] < 1 << 20, "what it forks leaves nothing in it"
