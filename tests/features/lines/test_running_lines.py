"""Tests of lines of batches that have not ended: they are read from the results so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.lines import opening, running, searching
from features.lines.reader import LineFilter
from features.lines.running import RunningLines
from jobs import files
from jobs.chunks.recording import LineResult
from jobs.errors import GoneError
from jobs.lines.output_lines import error_line, output_line
from jobs.partitions import batch_day
from jobs.storage import Storage
from jobs.tables import Batch
from tests.jobs.batches.answered_lines import answer, claim_all, failure, flush

Run = Callable[..., Batch]
ALL = LineFilter()


@pytest.fixture
def reader(session: Session, maker: sessionmaker[Session], storage: Storage, run: Run) -> RunningLines:
    """Lines of a batch of twelve, of which 0, 1, 2 and 9 have results; 2 has failed."""
    batch = run(12)
    first, _, third = claim_all(session)
    flush(session, third, [answer(batch.id, 9)])
    refused = output_line(batch.id, 1, "a1", status_code=400, body={"error": {"message": "engine_failure"}})
    results = [answer(batch.id, 0), LineResult(line_no=1, line=refused, status_code=400), failure(batch.id, 2)]
    flush(session, first, results)
    lines = opening.open_lines(session, maker, storage, batch)
    assert isinstance(lines, RunningLines)
    return lines


def numbers(reader: RunningLines, wanted: LineFilter = ALL, *, first_line: int = 0, limit: int = 10) -> list[int]:
    return [line.line_no for line in reader.page(wanted, first_line=first_line, limit=limit).lines]


def test_pages_have_the_results_so_far_by_line_number(reader: RunningLines) -> None:
    assert numbers(reader) == [0, 1, 2, 9]
    page = reader.page(ALL, first_line=0, limit=2)
    assert ([line.line_no for line in page.lines], page.next_line, page.has_more) == ([0, 1], 2, True)
    assert numbers(reader, first_line=page.next_line) == [2, 9]
    assert not reader.page(ALL, first_line=2, limit=2).has_more


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (LineFilter(is_error=True), [1, 2]),
        (LineFilter(is_error=False), [0, 9]),
        (LineFilter(status_code=400), [1]),
        (LineFilter(code="engine_failure"), [2]),
        (LineFilter(code="engine"), []),
    ],
)
def test_a_filter_gives_the_lines_that_meet_all_of_it(
    reader: RunningLines, wanted: LineFilter, found: list[int]
) -> None:
    assert numbers(reader, wanted) == found
    assert numbers(reader, wanted, limit=1) == found[:1]


def test_a_page_ends_after_its_window_and_says_that_more_may_follow(
    reader: RunningLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_WINDOW", 2)
    page = reader.page(LineFilter(status_code=200), first_line=1, limit=10)
    assert (list(page.lines), page.next_line, page.has_more) == ([], 3, True)
    assert numbers(reader, first_line=8) == [9]


def test_one_line_is_found_once_it_has_a_result(reader: RunningLines) -> None:
    line = reader.find(9)
    assert line is not None
    assert line.is_whole
    assert orjson.loads(line.content)["custom_id"] == "a9"
    assert reader.find(8) is None


def test_a_search_goes_through_all_results(reader: RunningLines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_SEARCHED_ROWS", 1)

    def found(text: str, wanted: LineFilter = ALL) -> list[int]:
        parts = searching.search(reader, text, wanted, first_line=0, limit=10)
        return [line.line_no for part in parts for line in part.lines]

    assert found("a") == [0, 1, 2, 9]
    assert found("engine_failure") == [1], "a code is not a text"
    assert found("a", LineFilter(is_error=True)) == [1, 2]


def test_lines_end_where_the_results_are_deleted(
    session: Session, reader: RunningLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_SEARCHED_ROWS", 1)
    parts = reader.search(b"a", ALL, first_line=0)
    assert [line.line_no for line in next(parts).lines] == [0]
    files.delete_results(session, Batch.id == reader.batch_id, by="key")
    session.commit()
    for call in (lambda: next(parts), lambda: reader.page(ALL, first_line=0, limit=5), lambda: reader.find(0)):
        with pytest.raises(GoneError) as caught:
            call()
        assert caught.value.code == "results_deleted"


def test_a_search_does_not_end_as_if_whole_where_the_results_have_expired(
    session: Session, reader: RunningLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_SEARCHED_ROWS", 1)
    parts = reader.search(b"a", ALL, first_line=0)
    next(parts)
    session.execute(text("DELETE FROM result WHERE batch_id = :batch_id"), {"batch_id": reader.batch_id})
    session.commit()
    monkeypatch.setattr(running, "has_partition", lambda _session, _day: False)
    with pytest.raises(GoneError) as caught:
        list(parts)
    assert caught.value.code == "results_expired"


def refused(batch_id: str, line_no: int, *, code: object, more: object = None) -> LineResult:
    body = {"error": {"message": "m" * 500, "code": code, "more": more}}
    line = output_line(batch_id, line_no, f"a{line_no}", status_code=400, body=body)
    return LineResult(line_no=line_no, line=line, status_code=400)


@pytest.fixture
def with_refused(session: Session, maker: sessionmaker[Session], run: Run) -> RunningLines:
    """Lines of a batch of 40 that all have the code `outer`, but 38, which has `inner` as the others have elsewhere."""
    batch = run(40)
    for claim in claim_all(session):
        numbers = range(claim.first_line, claim.first_line + claim.num_lines)
        codes = {38: "inner", 39: 40013}
        made = [refused(batch.id, each, code=codes.get(each, "outer"), more={"code": "inner"}) for each in numbers]
        flush(session, claim, made)
    return RunningLines(maker=maker, batch_id=batch.id, day=batch_day(batch.created_at))


def test_a_code_that_is_elsewhere_in_lines_takes_few_queries(
    with_refused: RunningLines, statements: list[tuple[str, Any]]
) -> None:
    statements.clear()
    assert numbers(with_refused, LineFilter(code="inner"), limit=1) == [38]
    assert 0 < sum("FROM result" in each for each, _ in statements) <= 4


def test_a_page_of_a_code_ends_after_its_candidates(
    with_refused: RunningLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_CANDIDATES", 15)
    monkeypatch.setattr(running, "_READ_ROWS", 4)
    pages = [with_refused.page(LineFilter(code="inner"), first_line=0, limit=3)]
    while pages[-1].has_more:
        pages.append(with_refused.page(LineFilter(code="inner"), first_line=pages[-1].next_line, limit=3))
    assert [page.next_line for page in pages[:-1]] == [15, 30]
    assert [line.line_no for page in pages for line in page.lines] == [38]


def test_a_page_ends_after_its_bytes(with_refused: RunningLines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_READ_BYTES", 1)
    monkeypatch.setattr(running, "_PAGE_BYTES", 1)
    page = with_refused.page(ALL, first_line=5, limit=3)
    assert ([line.line_no for line in page.lines], page.next_line, page.has_more) == ([5], 6, True)


def test_a_code_may_be_a_number(with_refused: RunningLines) -> None:
    assert numbers(with_refused, LineFilter(code="40013")) == [39]
    assert numbers(with_refused, LineFilter(code="4001")) == []


def test_a_long_failure_has_its_code_and_is_shown_in_part(
    with_refused: RunningLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MAX_SHOWN_BYTES", 200)
    assert numbers(with_refused, LineFilter(code="outer"), first_line=30) == list(range(30, 38))
    [found] = with_refused.page(ALL, first_line=38, limit=1).lines
    assert (found.is_whole, len(found.content), found.kind.code) == (False, 200, "inner")


def test_the_beginning_of_a_failure_that_is_not_read_whole_has_no_code(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MAX_LINE_BYTES", 200)
    batch = run(1)
    (claim,) = claim_all(session)
    line = error_line(batch.id, 0, "x" * 500, code="engine_failure", message="no")
    flush(session, claim, [LineResult(line_no=0, line=line, status_code=None)])
    [found] = opening.open_lines(session, maker, storage, batch).page(ALL, first_line=0, limit=5).lines
    assert (found.is_whole, len(found.content), found.kind.code) == (False, 200, None)
