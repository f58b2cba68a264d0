"""Documents read in a process of their own: one that hangs, grows or dies is one document that fails."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks.extraction.pages import make_pdf
from extraction.documents.limits import Limits
from extraction.documents.parsing import PARSERS, parse
from extraction.documents.process.document_reader import DocumentReader
from extraction.errors import DocumentCode, DocumentError
from tests.extraction.documents import builders

PDF = make_pdf(3, seed=1)
SLOW = b"<html>" + b"<div>" * 100_000  # what markup is read with takes the square of its depth


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


def test_one_process_reads_many(reader: DocumentReader) -> None:
    reader.read(b"a", "a.txt")
    first = reader.process_id
    assert refusal(reader, b"", "b.txt").code == DocumentCode.EMPTY
    reader.read(b"c", "c.txt")
    assert reader.process_id == first


def test_a_document_that_takes_too_long_fails_and_the_next_goes_on() -> None:
    with DocumentReader(Limits(seconds=1.5)) as reader:
        error = refusal(reader, SLOW)
        assert (error.code, str(error)) == (DocumentCode.TIME_LIMIT, "reading it takes more than 1.5 s; split it")
        assert reader.process_id is None
        assert reader.read(b"b", "b.txt").text == "b"


def test_a_pdf_that_takes_too_long_says_at_which_page() -> None:
    with DocumentReader(Limits(seconds=1, memory_bytes=8 << 30)) as reader:
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


def test_a_process_is_replaced_after_so_many_documents() -> None:
    with DocumentReader(Limits(documents_per_process=2)) as reader:
        reader.read(b"a", "a.txt")
        first = reader.process_id
        assert refusal(reader, b"", "b.txt").code == DocumentCode.EMPTY
        assert reader.process_id is None
        reader.read(b"c", "c.txt")
        assert reader.process_id not in {None, first}


def test_a_process_that_grew_is_replaced() -> None:
    with DocumentReader(Limits(growth_bytes=-1)) as reader:
        reader.read(b"a", "a.txt")
        assert reader.process_id is None


def test_a_file_over_the_limit_starts_no_process() -> None:
    with DocumentReader(Limits(max_bytes=3)) as reader:
        assert refusal(reader, b"four", "a.txt").code == DocumentCode.TOO_LARGE
        assert reader.process_id is None


def test_the_process_ends_with_its_reader(reader: DocumentReader) -> None:
    reader.read(b"a", "a.txt")
    process_id = reader.process_id
    assert process_id is not None
    reader.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)


CONFINED = """
import ctypes, os, socket, subprocess, tempfile
from extraction.documents.process.confinement import confine
confine(1 << 30)
libc = ctypes.CDLL(None, use_errno=True)
print(libc.socket(2, 1, 0), ctypes.get_errno())
for attempt in (socket.socket, lambda: subprocess.run(["true"]), lambda: os.execv("/bin/true", ["true"]),
                tempfile.gettempdir, lambda: bytearray(1 << 30)):
    try:
        attempt()
        print("done")
    except (OSError, MemoryError) as error:
        print(type(error).__name__)
"""


CALLED = """
import ctypes
from extraction.documents.process.confinement import confine
confine(1 << 30)
libc = ctypes.CDLL(None, use_errno=True)
for number in (425, 438, 310, 311, 0x40000000 + 41, 39):
    ctypes.set_errno(0)
    print(number, "refused" if libc.syscall(number, 0, 0, 0, 0, 0, 0) < 0 and ctypes.get_errno() == 13 else "allowed")
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86-64's")
def test_a_confined_process_finds_no_other_way_to_sockets_or_into_another_process() -> None:
    result = subprocess.run([sys.executable, "-c", CALLED], capture_output=True, text=True, check=True, timeout=60)
    refused = ("425", "438", "310", "311", str(0x40000000 + 41))  # io_uring_setup, pidfd_getfd, process_vm_*, x32's
    assert result.stdout.split() == [word for number in refused for word in (number, "refused")] + ["39", "allowed"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere sockets of libraries are not refused")
def test_a_confined_process_has_no_sockets_no_programs_no_files_and_little_memory() -> None:
    result = subprocess.run([sys.executable, "-c", CONFINED], capture_output=True, text=True, check=True, timeout=60)
    said = ["-1 13", "PermissionError", "PermissionError", "PermissionError", "FileNotFoundError", "MemoryError"]
    assert result.stdout.splitlines() == said
