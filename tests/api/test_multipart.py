"""Tests of the upload form's reader, fed with pieces of every size."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from api.multipart import UploadReader
from jobs.errors import InputError, TooLargeError

BOUNDARY = "b0undary"
CONTENT_TYPE = f'multipart/form-data; boundary="{BOUNDARY}"'


class Collected:
    def __init__(self) -> None:
        self.content = b""
        self.names: list[str] = []

    def begin(self, filename: str) -> None:
        self.names.append(filename)

    def write(self, data: bytes) -> None:
        self.content += data


def part(name: str, content: bytes, *, filename: str | None = None) -> bytes:
    suffix = f'; filename="{filename}"' if filename is not None else ""
    header = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{suffix}\r\n\r\n'
    return header.encode() + content + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def read(body: bytes, *, piece: int = 1 << 20, content_type: str = CONTENT_TYPE) -> tuple[UploadReader, Collected]:
    sink = Collected()
    reader = UploadReader(content_type, sink, checks={"purpose": lambda name, value: None})
    for start in range(0, len(body), piece):
        reader.feed(body[start : start + piece])
    return reader, sink


PURPOSE = part("purpose", b"batch")
CONTENT = b'{"a": 1}\r\n--b0undar\r\n--\r\n\x00\xff'
FILE = part("file", CONTENT, filename="in.jsonl")


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 1000])
@pytest.mark.parametrize("parts", [(PURPOSE, FILE), (FILE, PURPOSE)])
def test_the_content_arrives_unchanged_however_it_is_cut_and_ordered(piece: int, parts: Sequence[bytes]) -> None:
    reader, sink = read(form(*parts), piece=piece)
    uploaded = reader.finish()
    assert sink.content == CONTENT
    assert (uploaded.filename, uploaded.fields) == ("in.jsonl", {"purpose": "batch"})


def test_an_empty_file_is_a_file() -> None:
    reader, sink = read(form(PURPOSE, part("file", b"", filename="empty.jsonl")))
    assert reader.finish().filename == "empty.jsonl"
    assert sink.content == b""


def test_escaped_quotes_in_a_filename_are_read_back() -> None:
    reader, _ = read(form(part("file", b"x", filename="a%22b é.jsonl")))
    assert reader.finish().filename == 'a"b é.jsonl'


def test_a_filename_may_hold_a_character_that_this_python_does_not_know() -> None:
    reader, _ = read(form(part("file", b"x", filename="new \U000e0fff.jsonl")))
    assert reader.finish().filename == "new \U000e0fff.jsonl"


@pytest.mark.parametrize("space", [" ", "\u00a0", "\u202f", "\u3000"])
def test_a_filename_may_hold_any_kind_of_space(space: str) -> None:
    name = f"Screenshot at 9.41{space}PM.jsonl"  # macOS writes U+202F here
    reader, _ = read(form(part("file", b"x", filename=name)))
    assert reader.finish().filename == name


@pytest.mark.parametrize(
    "filename", ["", "a%0Ab", "a\tb", "a\x00b", "a\x85b", "a\u2028b", "a\u202eb", "a\ufeffb", "x" * 256]
)
def test_a_filename_that_cannot_be_shown_is_refused(filename: str) -> None:
    with pytest.raises(InputError, match="1 to 255 printable"):
        read(form(part("file", b"x", filename=filename)))


def test_a_field_is_checked_before_the_file_arrives() -> None:
    def refuse(name: str, value: str) -> None:
        raise InputError(f"{name} is {value}")

    sink = Collected()
    with pytest.raises(InputError, match="purpose is batch"):
        UploadReader(CONTENT_TYPE, sink, checks={"purpose": refuse}).feed(form(PURPOSE, FILE))
    assert sink.content == b""


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (form(PURPOSE, part("colour", b"red"), FILE), "colour", "unknown_parameter"),
        (form(PURPOSE, PURPOSE, FILE), "purpose", "invalid_value"),
        (form(FILE, FILE), "file", "invalid_value"),
        (form(part("file", b"no filename")), "file", "invalid_value"),
        (form(PURPOSE), "file", "missing_required_parameter"),
        (form(PURPOSE, FILE)[:-8], None, "invalid_form"),
        (b"", None, "invalid_form"),
        (b"not a form at all", None, "invalid_form"),
    ],
)
def test_a_wrong_form_is_refused_by_name(body: bytes, param: str | None, code: str) -> None:
    with pytest.raises(InputError) as caught:
        read(body)[0].finish()
    assert (caught.value.param, caught.value.code) == (param, code)


def test_a_field_cannot_fill_the_memory() -> None:
    with pytest.raises(TooLargeError, match="1024 bytes"):
        read(form(part("purpose", b"x" * 1025)))


@pytest.mark.parametrize(
    "content_type", ["application/json", "multipart/form-data", f"multipart/form-data; boundary={'x' * 71}", ""]
)
def test_a_body_without_a_boundary_is_refused(content_type: str) -> None:
    with pytest.raises(InputError, match="multipart/form-data"):
        read(b"", content_type=content_type)
