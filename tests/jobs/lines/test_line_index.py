"""Tests that an index returns the lines that were written, wherever its blocks end."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.lines import line_index
from jobs.lines.line_index import (
    BYTES_A_LINE,
    TAIL,
    IndexedLine,
    Kind,
    LineIndex,
    LineIndexWriter,
    NotAnIndexError,
    ResultLine,
    directory_size,
    kind_of,
)
from jobs.lines.output_lines import error_line, failure_code, output_line

KINDS = [Kind(False, 200, None), Kind(True, 400, "too_long"), Kind(True, None, "engine_failure")]


def written(lines: list[tuple[int, Kind, int]]) -> bytes:
    parts: list[bytes] = []
    writer = LineIndexWriter(parts.append)
    for line in lines:
        writer.add_one(*line)
    writer.finish()
    return b"".join(parts)


def parsed(content: bytes) -> LineIndex:
    size = directory_size(content[-TAIL.size :])
    return LineIndex.parse(content[-TAIL.size - size : -TAIL.size])


def read(content: bytes, *, line_no: int = 0) -> list[IndexedLine]:
    index = parsed(content)
    blocks = index.blocks_from(line_no)
    return [line for block in blocks for line in index.lines_of(block, content[block.start : block.end])]


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(KINDS), st.integers(1, 3000)), max_size=60))
def test_an_index_returns_every_line_with_its_place(steps: list[tuple[int, Kind, int]]) -> None:
    lines, line_no = [], -1
    for step, kind, size in steps:
        line_no += step
        lines.append((line_no, kind, size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_index, "BLOCK_LINES", 7)
        patch.setattr(line_index, "BLOCK_BYTES", 9000)
        content = written(lines)
    ends = {False: 0, True: 0}
    expected = []
    for number, kind, size in lines:
        expected.append(IndexedLine(number, kind, ends[kind.is_error], size))
        ends[kind.is_error] += size
    assert read(content) == expected


def test_pages_of_lines_are_those_lines_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_index, "BLOCK_LINES", 5)
    monkeypatch.setattr(line_index, "BLOCK_BYTES", 900)
    failure = error_line("b", 1, "a", code="late", message="m")
    page: list[ResultLine] = []
    for number in range(31):
        is_error = number % 3 == 0
        page.append((number, is_error, None if is_error else 200, failure * (1 + number % 4)))
    parts: list[bytes] = []
    writer = LineIndexWriter(parts.append)
    for start in range(0, 31, 8):
        writer.add(page[start : start + 8])
    writer.finish()
    lines = [
        (number, Kind(is_error, status, "late" if is_error else None), len(content) + 1)
        for number, is_error, status, content in page
    ]
    assert b"".join(parts) == written(lines)


def test_blocks_from_a_line_begin_with_the_one_that_may_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_index, "BLOCK_LINES", 10)
    content = written([(2 * number, KINDS[0], 5) for number in range(100)])
    assert read(content, line_no=39)[0].line_no == 20
    assert read(content, line_no=40)[0].line_no == 40
    assert read(content, line_no=1000)[0].line_no == 180
    assert read(content, line_no=0)[0].line_no == 0


def test_a_block_counts_its_lines_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_index, "BLOCK_LINES", 4)
    index = parsed(written([(number, KINDS[number // 3 % 2], 5) for number in range(8)]))
    by_kind = [{index.kinds[kind]: num for kind, num in block.counts.items()} for block in index.blocks]
    assert by_kind == [{KINDS[0]: 3, KINDS[1]: 1}, {KINDS[1]: 2, KINDS[0]: 2}]


def test_a_line_takes_ten_bytes() -> None:
    assert len(written([(number, KINDS[0], 700) for number in range(100_000)])) < 1.05 * BYTES_A_LINE * 100_000


def test_codes_beyond_the_most_are_none_and_no_line_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_index, "MAX_KINDS", 4)
    lines = read(written([(number, Kind(True, 400, f"code_{number}"), 5) for number in range(6)]))
    assert [line.kind.code for line in lines] == ["code_0", "code_1", "code_2", None, None, None]
    [line] = read(written([(0, Kind(True, 400, "x" * 201), 5)]))
    assert line.kind == Kind(True, 400, None)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 100, TAIL.pack(7, b"tmlines0")])
def test_other_bytes_are_no_index(content: bytes) -> None:
    with pytest.raises(NotAnIndexError):
        directory_size(content[-TAIL.size :])


@pytest.mark.parametrize(
    "directory",
    [
        *(b"", b"{", b"[]", b'"text"', b"{}", b'{"kinds":[],"blocks":[[1]]}', b'{"kinds":[[1]],"blocks":[]}'),
        b'{"kinds":[],"blocks":[[0,1,0,0,0,[[0,1]]]]}',
        b'{"kinds":[[false,200,null]],"blocks":[["0",1,0,0,0,[[0,1]]]]}',
        b'{"kinds":[[false,200,null]],"blocks":[[0,1,7,0,0,[[0,1]]]]}',
        b'{"kinds":[[false,200,null]],"blocks":[[0,-1,0,0,0,[[0,-1]]]]}',
        b'{"kinds":[[false,200,null]],"blocks":[[0,2,0,0,0,[[0,1]]]]}',
        b'{"kinds":[[false,200,null]],"blocks":[[0,1,0,0,0,[["0",1]]]]}',
    ],
)
def test_a_broken_directory_is_no_index(directory: bytes) -> None:
    with pytest.raises(NotAnIndexError):
        LineIndex.parse(directory)


@pytest.mark.parametrize("content", [b"", b"x" * 29, b"x" * 31, b"x" * 30])
def test_a_broken_block_is_no_index(content: bytes) -> None:
    index = parsed(written([(number, KINDS[0], 5) for number in range(3)]))
    with pytest.raises(NotAnIndexError):
        index.lines_of(index.blocks[0], content)


TRICKY = '","response":null,"error":{"code":"fake"'


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (error_line("b", 1, "a", code="batch_expired", message="late"), "batch_expired"),
        (error_line("b", 1, TRICKY, code="batch_expired", message="late"), "batch_expired"),
        (error_line("b", 1, "a", code='with "quotes"', message=TRICKY), 'with "quotes"'),
        (
            output_line("b", 1, "a", status_code=400, body={"error": {"message": TRICKY, "code": "long"}}),
            "long",
        ),
        (output_line("b", 1, "a", status_code=500, body={"error": {"code": 7}}), "7"),
        (output_line("b", 1, "a", status_code=500, body={"error": {"message": "no code"}}), None),
        (output_line("b", 1, "a", status_code=500, body={"error": "a text"}), None),
        (orjson.dumps({"id": "x", "custom_id": "a", "response": {"body": "no object"}, "error": None}), None),
    ],
)
def test_the_code_of_a_failed_line_is_that_of_its_error(line: bytes, code: str | None) -> None:
    assert failure_code(line) == code


def test_a_line_of_the_output_file_has_no_code() -> None:
    assert kind_of(b"not parsed", is_error=False, status_code=200) == Kind(False, 200, None)
