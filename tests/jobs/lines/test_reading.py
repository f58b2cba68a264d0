"""Lines: how files are split, what a good line is, which code a bad one gets, what is written back."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.lines.output_lines import error_line, output_line
from jobs.lines.reading import (
    BOM,
    CustomIds,
    InputLine,
    LineProblem,
    RawLine,
    custom_id_of,
    iter_lines,
    parse_line,
    shown,
    split_lines,
    too_long_problem,
)

CHAT = "/v1/chat/completions"
GOOD = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m", "messages": []}}

floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | floats | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def problem(raw: bytes, *, line_no: int = 0) -> LineProblem:
    with pytest.raises(LineProblem) as caught:
        parse_line(raw, line_no=line_no, endpoint=CHAT)
    return caught.value


def with_change(**changes: object) -> bytes:
    return json.dumps(GOOD | changes).encode()


def without(key: str) -> bytes:
    return json.dumps({name: value for name, value in GOOD.items() if name != key}).encode()


def test_a_file_from_the_wild_gives_its_requests_with_their_places() -> None:
    content = BOM + b'{"a":1}\r\n\r\n   \n{"b":2}\n\n{"c":3}'
    lines = split_lines(content)
    assert [(line.line_no, line.content) for line in lines] == [(0, b'{"a":1}'), (3, b'{"b":2}'), (5, b'{"c":3}')]
    assert content[lines[1].byte_start : lines[1].byte_end] == b'{"b":2}\n'
    assert content[lines[2].byte_start : lines[2].byte_end] == b'{"c":3}'
    assert content[lines[0].byte_start : lines[0].byte_end] == BOM + b'{"a":1}\r\n'


@pytest.mark.parametrize("content", [b"", BOM, b"\n", b"\r\n\r\n", BOM + b"\r\n \t \n"])
def test_a_file_of_blank_lines_has_no_requests(content: bytes) -> None:
    assert split_lines(content) == []


def test_a_byte_order_mark_is_only_removed_from_the_first_line() -> None:
    lines = split_lines(b"x\n" + BOM + b"y")
    assert lines[1].content == BOM + b"y"


@given(
    texts=st.lists(st.binary(max_size=12).filter(lambda text: b"\n" not in text), max_size=12),
    cuts=st.lists(st.integers(0, 100), max_size=6),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    has_final_end=st.booleans(),
)
def test_splitting_a_stream_gives_the_same_however_it_is_cut(
    texts: list[bytes], cuts: list[int], ending: bytes, has_final_end: bool
) -> None:
    content = ending.join(texts) + (ending if has_final_end else b"")
    edges = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    blocks = [content[start:end] for start, end in itertools.pairwise(edges)]
    lines = list(iter_lines(blocks, max_line_bytes=100))
    assert lines == split_lines(content)
    numbered = list(enumerate(content.split(b"\n")))
    assert [line.line_no for line in lines] == [
        number for number, text in numbered if text.removeprefix(BOM if number == 0 else b"").strip(b" \t\n\r\x0b\x0c")
    ]
    for line in lines:
        assert line.content is not None
        assert line.content in content[line.byte_start : line.byte_end]


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 9))
def test_a_line_over_the_limit_is_counted_and_not_kept(sizes: list[int], block: int) -> None:
    content = b"\n".join(b"x" * size for size in sizes)
    blocks = [content[start : start + block] for start in range(0, len(content), block)]
    lines = list(iter_lines(blocks, max_line_bytes=10))
    assert [line.line_no for line in lines] == [number for number, size in enumerate(sizes) if size]
    assert [line.content is None for line in lines] == [size > 10 for size in sizes if size]
    problem = too_long_problem(RawLine(4, 0, 11, None), max_line_bytes=10)
    assert "11 bytes" in problem.message
    assert "10 are allowed" in problem.message
    assert problem.wire()["line"] == 5


def lines_by_hand(content: bytes, *, longest: int) -> Iterator[RawLine]:
    start = 0
    for line_no, line in enumerate(io.BytesIO(content)):
        end, kept = start + len(line), line.removesuffix(b"\n")
        if len(kept) > longest:
            yield RawLine(line_no, start, end, None)
        elif (text := kept.removeprefix(BOM if line_no == 0 else b"").removesuffix(b"\r")).strip():
            yield RawLine(line_no, start, end, text)
        start = end


marks = st.sampled_from([BOM, BOM[:2], b"\n", b"\r\n", b"\r", b" \t", b"a", b"x" * 9, b"y" * 11])


@given(parts=st.lists(marks | st.binary(max_size=4), max_size=20), cuts=st.lists(st.integers(0, 120), max_size=8))
def test_any_bytes_cut_anywhere_give_the_lines_of_the_whole_file(parts: list[bytes], cuts: list[int]) -> None:
    content = b"".join(parts)
    edges = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    blocks = [content[start:end] for start, end in itertools.pairwise(edges)]
    assert list(iter_lines(blocks, max_line_bytes=10)) == list(lines_by_hand(content, longest=10))


def test_a_chunk_of_a_file_splits_with_the_numbers_and_places_of_the_file() -> None:
    content = b"one\n\ntwo\nthree\n"
    whole = split_lines(content)
    part = split_lines(content[whole[1].byte_start : whole[2].byte_end], first_line=2, byte_start=whole[1].byte_start)
    assert part == whole[1:]


def test_a_good_line_is_read() -> None:
    line = parse_line(json.dumps(GOOD).encode() + b"\r", line_no=7, endpoint=CHAT)
    assert (line.line_no, line.custom_id, line.model, line.body) == (7, "a", "m", GOOD["body"])


@pytest.mark.parametrize(
    ("raw", "code", "param", "words"),
    [
        (b'{"custom_id": ', "invalid_json_line", None, "not valid JSON"),
        (b'{"custom_id": "a", oops}', "invalid_json_line", None, "expected a string key at character 20"),
        (b"this is not json", "invalid_json_line", None, "this line is not valid JSON from its character 1 on"),
        (b'{"custom_id": nul}', "invalid_json_line", None, "this line is not valid JSON from its character 15 on"),
        (b"[" * 1025 + b"]" * 1025, "invalid_request", None, "is nested more than 1024 levels deep"),
        (b"\xff\xfe", "invalid_json_line", None, "not UTF-8 from its byte 1 on"),
        ('{"custom_id": "Ü'.encode("latin-1"), "invalid_json_line", None, "not UTF-8 from its byte 16 on"),
        (b"[1]", "invalid_json_line", None, "an array"),
        (b"null", "invalid_json_line", None, "null"),
        (without("custom_id"), "invalid_request", "custom_id", "is missing"),
        (with_change(custom_id=""), "invalid_request", "custom_id", 'is ""'),
        (with_change(custom_id=7), "invalid_request", "custom_id", "is 7"),
        (without("method"), "invalid_request", "method", "is missing"),
        (with_change(method="GET"), "invalid_request", "method", '"GET"'),
        (without("url"), "url_mismatch", "url", "is missing"),
        (with_change(url="/v1/x"), "url_mismatch", "url", f'url is "/v1/x"; this batch\'s endpoint is "{CHAT}"'),
        (without("body"), "invalid_request", "body", "is missing"),
        (with_change(body="hello"), "invalid_request", "body", '"hello"'),
        (with_change(body={"messages": []}), "invalid_request", "body.model", "is missing"),
        (with_change(body={"model": None}), "invalid_request", "body.model", "is null"),
    ],
)
def test_a_bad_line_is_named_with_its_code(raw: bytes, code: str, param: str | None, words: str) -> None:
    found = problem(raw, line_no=16)
    assert (found.code, found.param) == (code, param)
    assert words in found.message
    assert found.wire() == {"code": code, "message": found.message, "param": param, "line": 17}
    assert str(found).startswith("line 17: ")


def test_a_bad_line_keeps_its_custom_id_where_it_has_one() -> None:
    assert problem(with_change(url="/x")).custom_id == "a"
    assert problem(with_change(custom_id=3)).custom_id is None


def outcome(raw: bytes) -> InputLine | LineProblem:
    try:
        return parse_line(raw, line_no=0, endpoint=CHAT)
    except LineProblem as found:
        return found


@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_line_or_a_problem(raw: bytes) -> None:
    found = outcome(raw)
    assert isinstance(found, InputLine) or found.message
    assert custom_id_of(raw) is None or isinstance(custom_id_of(raw), str)


@given(st.sampled_from(sorted(GOOD)), json_values)
def test_a_line_with_one_part_replaced_is_good_or_blames_that_part(key: str, value: object) -> None:
    found = outcome(with_change(**{key: value}))
    if isinstance(found, LineProblem):
        assert found.param is not None
        assert found.param.split(".")[0] == key
    else:
        assert found.custom_id
        assert found.model


def test_a_repeated_custom_id_is_found_with_its_first_line() -> None:
    ids = CustomIds()
    assert [ids.add("a", 0), ids.add("b", 2), ids.add("a", 5), ids.add("a", 6)] == [None, None, 0, 0]


def test_output_lines_have_the_form_of_the_contract() -> None:
    line = json.loads(output_line("batch_1", 3, "a", status_code=200, body={"x": 1}))
    assert list(line) == ["id", "custom_id", "response", "error"]
    assert line["id"].startswith("batch_req_")
    assert list(line["response"]) == ["status_code", "request_id", "body"]
    assert line["response"]["body"] == {"x": 1}
    assert line["error"] is None


def test_error_lines_have_the_form_of_the_contract() -> None:
    line = json.loads(error_line("batch_1", 3, "a", code="batch_expired", message="over"))
    assert line["response"] is None
    assert line["error"] == {"code": "batch_expired", "message": "over"}


def test_ids_depend_on_batch_and_line_only() -> None:
    def line_id(batch_id: str, line_no: int) -> str:
        return str(json.loads(error_line(batch_id, line_no, "a", code="c", message="m"))["id"])

    assert line_id("batch_1", 3) == line_id("batch_1", 3)
    assert len({line_id("batch_1", 3), line_id("batch_1", 4), line_id("batch_2", 3), line_id("batch_13", 0)}) == 4


def test_a_long_value_is_shortened_in_messages() -> None:
    assert len(shown("x" * 1000)) < 100


def test_a_value_too_deep_to_be_quoted_is_the_lines_problem() -> None:
    """orjson reads it and would not write it again."""
    deep = b"[" * 500 + b"]" * 500
    with pytest.raises(LineProblem) as caught:
        parse_line(b'{"custom_id": ' + deep + b"}", line_no=4, endpoint=CHAT)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "custom_id")
    assert "nested too deeply" in str(caught.value)


@given(st.text(), json_values)
def test_custom_ids_and_bodies_survive_the_round_trip(custom_id: str, body: object) -> None:
    line = output_line("b", 0, custom_id, status_code=200, body={"value": body})
    assert b"\n" not in line
    read = json.loads(line)
    assert read["custom_id"] == custom_id
    assert read["response"]["body"] == {"value": body}
