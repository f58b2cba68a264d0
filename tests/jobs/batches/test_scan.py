from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.batches.scan import MAX_CHUNK_BYTES, SHORT_CHUNK_TOKENS, ChunkPlanner, Scan
from jobs.lines.bodies import COMPLETION_ENDPOINT
from jobs.lines.reading import RawLine
from jobs.settings import Settings


@given(
    kinds=st.lists(st.sampled_from(["good", "bad", "blank"]), max_size=60),
    max_lines=st.integers(1, 10),
)
def test_chunks_cover_every_good_line_once_and_count_what_lies_between(kinds: list[str], max_lines: int) -> None:
    planner = ChunkPlanner(max_lines=max_lines, max_tokens=10**6)
    for number, kind in enumerate(kinds):
        if kind == "good":
            planner.add(RawLine(number, number * 10, number * 10 + 10, b"x"), 7)
        elif kind == "bad":
            planner.skip()
    chunks = planner.finish()
    spans = [range(chunk.first_line, chunk.first_line + chunk.num_lines) for chunk in chunks]
    assert [number for span in spans for number in span if kinds[number] == "good"] == [
        number for number, kind in enumerate(kinds) if kind == "good"
    ]
    for chunk, span in zip(chunks, spans, strict=True):
        assert 1 <= chunk.num_lines <= max_lines
        assert kinds[span[0]] == kinds[span[-1]] == "good"
        assert chunk.num_requests == sum(kinds[number] != "blank" for number in span)
        assert (chunk.byte_start, chunk.byte_end) == (span[0] * 10, span[-1] * 10 + 10)
        assert chunk.estimated_tokens == 7 * sum(kinds[number] == "good" for number in span)


def test_a_chunk_knows_its_copies_wherever_their_originals_are() -> None:
    planner = ChunkPlanner(max_lines=2, max_tokens=10**6)
    for number, copy_of in enumerate([None, 0, 0, None, 0, 3]):
        planner.add(RawLine(number, number * 10, (number + 1) * 10, b"x"), 1, copy_of=copy_of)
    assert [chunk.copies for chunk in planner.finish()] == [[1, 0], [2, 0], [4, 0, 5, 3]]


def test_a_chunk_of_long_lines_ends_early() -> None:
    planner = ChunkPlanner(max_lines=64, max_tokens=10**6)
    half = MAX_CHUNK_BYTES // 2
    for number in range(4):
        planner.add(RawLine(number, number * half, (number + 1) * half, b"x"), 1)
    assert [chunk.num_lines for chunk in planner.finish()] == [2, 2]


@pytest.mark.parametrize(
    ("tokens", "sizes"),
    [
        (1, [512, 488]),
        (SHORT_CHUNK_TOKENS // 100, [100] * 10),
        (SHORT_CHUNK_TOKENS // 50, [64] * 15 + [40]),
        (1_000, [64] * 15 + [40]),
        (8_000, [16] * 62 + [8]),
        (200_000, [1] * 1000),
    ],
)
def test_short_lines_make_long_chunks_and_long_lines_short_ones(tokens: int, sizes: list[int]) -> None:
    planner = ChunkPlanner(max_lines=512, max_tokens=131_072)
    for number in range(1000):
        planner.add(RawLine(number, number * 10, number * 10 + 10, b"x"), tokens)
    assert [chunk.num_lines for chunk in planner.finish()] == sizes


def test_a_custom_id_is_as_long_as_the_setting_allows() -> None:
    scan = Scan(endpoint=COMPLETION_ENDPOINT, models={"m"}, settings=Settings(max_custom_id_characters=64))
    problems = [scan.check(_line(number, "é" * length)) for number, length in enumerate((64, 65))]
    assert problems[0] is None
    assert problems[1] is not None
    assert problems[1].wire() == {
        "code": "invalid_request",
        "message": "custom_id has 65 characters and 64 are allowed; shorten it",
        "param": "custom_id",
        "line": 2,
    }


def _line(number: int, custom_id: str) -> RawLine:
    body = {"model": "m", "prompt": "a"}
    content = orjson.dumps({"custom_id": custom_id, "method": "POST", "url": COMPLETION_ENDPOINT, "body": body})
    return RawLine(number, 0, len(content), content)
