"""Tests of passages: their limits hold exactly, they cover all of the text, and they know their positions."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.documents.extraction.documents.document import Heading
from features.documents.extraction.errors import PassageError
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passages.cutting import WINDOW_CHARACTERS, Cutter, by_windows
from features.documents.extraction.passages.passage import joined_spans
from lab.extraction.alignment import generated_text
from tests.features.documents.extraction.passages.builders import count, with_headings

TEXTS = st.text(alphabet="ab .,\n#ßé漢🙂-\t", max_size=600)


@given(text=TEXTS, max_tokens=st.integers(16, 60), overlap=st.integers(0, 4), cuts=st.lists(st.integers(0, 600)))
def test_no_passage_has_more_tokens_than_allowed_and_none_of_the_text_is_lost(
    text: str, max_tokens: int, overlap: int, cuts: list[int]
) -> None:
    starts = sorted({cut for cut in cuts if cut < len(text)})
    headings = [
        Heading(start=start, end=min(start + 9, end), level=1 + start % 3)
        for start, end in zip(starts, [*starts[1:], len(text)], strict=False)
    ]
    found = Cutter(count=count, max_tokens=max_tokens, overlap_tokens=overlap).cut(text, headings)
    assert all(one.num_tokens == count(one.shown(text)) <= max_tokens for one in found)
    covered = {index for one in found for index in range(one.start, one.end)}
    assert [text[index] for index in range(len(text)) if index not in covered and not text[index].isspace()] == []
    assert [one.start for one in found] == sorted(one.start for one in found)


def test_a_passage_says_what_it_stands_below_but_not_the_heading_that_it_holds() -> None:
    text, headings = with_headings(["before", "# Lease", "## Rent", "word " * 60, "## Term", "two years"])
    found = Cutter(count=count, max_tokens=40).cut(text, headings)
    told = [(one.headings, text[one.start : one.end][:8]) for one in found]
    assert told == [
        ((), "before"),
        ((), "Lease"),
        (("Lease",), "Rent\n\nwo"),
        (("Lease", "Rent"), "word wor"),
        (("Lease",), "Term\n\ntw"),
    ]
    assert found[3].shown(text).startswith("Lease > Rent\nword word")


def test_headings_take_tokens_only_where_they_count() -> None:
    text, headings = with_headings(["# A long title of a part", "## Its first chapter", "word " * 200])
    shorter = Cutter(count=count, max_tokens=40).cut(text, headings)
    longer = Cutter(count=count, max_tokens=40, do_headings_count=False).cut(text, headings)
    assert max(count(one.shown(text)) for one in shorter) <= 40
    assert max(count(text[one.start : one.end]) for one in longer) <= 40
    assert max(count(one.shown(text)) for one in longer) > 40
    assert len(longer) < len(shorter)


def test_headings_of_over_half_a_passage_lose_the_outermost() -> None:
    text, headings = with_headings(["# " + "outer " * 9, "## inner", "word " * 60])
    found = Cutter(count=count, max_tokens=20).cut(text, headings)
    assert found[-1].headings == ("inner",)


def test_passages_overlap_by_whole_words_up_to_what_is_allowed() -> None:
    text = " ".join(f"w{number:03}" for number in range(200))
    apart = Cutter(count=count, max_tokens=40).cut(text)
    over = Cutter(count=count, max_tokens=40, overlap_tokens=8).cut(text)
    assert all(one.end < other.start for one, other in itertools.pairwise(apart))
    shared = [count(text[other.start : one.end]) for one, other in itertools.pairwise(over)]
    assert set(shared) == {8}
    assert joined_spans(reversed(over)) == [Span(0, len(text))]


def test_a_text_is_cut_between_paragraphs_where_they_fit() -> None:
    text = generated_text(random.Random(1))
    found = Cutter(count=count, max_tokens=400).cut(text)
    ends = [text[one.end : one.end + 2] for one in found[:-1]]
    assert ends.count("\n\n") > len(ends) * 0.9


def test_a_text_of_blanks_has_no_passage() -> None:
    assert Cutter(count=count, max_tokens=20).cut(" \n\n ") == []


@pytest.mark.parametrize(
    ("max_tokens", "overlap", "says"), [(15, 0, "allow 16 or more"), (40, 11, "0 to 10 may be"), (40, -1, "0 to 10")]
)
def test_limits_that_cannot_be_kept_are_refused(max_tokens: int, overlap: int, says: str) -> None:
    with pytest.raises(PassageError, match=says):
        Cutter(count=count, max_tokens=max_tokens, overlap_tokens=overlap)


def test_a_sign_of_more_tokens_than_a_passage_may_have_is_an_error() -> None:
    with pytest.raises(PassageError, match="cannot be cut has 50 tokens"):
        Cutter(count=lambda text: 50 * len(text), max_tokens=20).cut("a")


LONG_LINES = st.lists(
    st.sampled_from(["漢字", "ab", "12.5", "。", ". ", " ", "\n", "e\u0301", "กข"]), min_size=400, max_size=900
)


@settings(max_examples=20)
@given(parts=LONG_LINES, overlap=st.integers(0, 4))
def test_a_text_with_a_long_line_is_cut_from_windows_within_the_same_limits(parts: list[str], overlap: int) -> None:
    text = "".join(parts) + "漢" * WINDOW_CHARACTERS * 16
    found = Cutter(count=count, max_tokens=16, overlap_tokens=overlap).cut(text)
    assert all(count(text[one.start : one.end]) <= 16 for one in found)
    covered = {index for one in found for index in range(one.start, one.end)}
    assert [text[index] for index in range(len(text)) if index not in covered and not text[index].isspace()] == []
    assert all(one.start < other.start and one.end < other.end for one, other in itertools.pairwise(found))


def test_windows_give_the_passages_of_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    text = "".join("。" if rng.random() < 0.002 else chr(0x4E00 + rng.randrange(3000)) for _ in range(6000))
    by_window = Cutter(count=len, max_tokens=40).cut(text)
    monkeypatch.setattr("features.documents.extraction.passages.cutting.WINDOW_CHARACTERS", len(text))
    assert by_window == Cutter(count=len, max_tokens=40).cut(text)


@pytest.mark.parametrize(("piece", "widest"), [(10, 100), (90, 200), (1000, 1000)])
def test_of_a_long_line_a_bounded_part_is_looked_at_again(piece: int, widest: int) -> None:
    looked: list[int] = []

    def split(start: int, end: int) -> list[Span]:
        looked.append(min(end, 1000) - start)
        return [Span(begin, min(begin + piece, end, 1000)) for begin in range(start, min(end, 1000), piece)]

    found = list(by_windows(split, 1000, 100))
    assert found == [Span(begin, min(begin + piece, 1000)) for begin in range(0, 1000, piece)]
    assert max(looked) <= widest
    assert sum(looked) < 4000


def test_texts_cut_by_other_limits_have_another_version() -> None:
    versions = {
        Cutter(count=count, max_tokens=tokens, overlap_tokens=overlap, do_headings_count=counts).version
        for tokens in (20, 30)
        for overlap in (0, 1)
        for counts in (True, False)
    }
    assert len(versions) == 8


def test_the_signs_of_a_heading_in_markdown_are_no_passage_of_their_own() -> None:
    text = "# Boats\n\nthey float\n\n## Oars\n\nof wood"
    headings = [
        Heading(start=text.index(title), end=text.index(title) + len(title), level=level)
        for title, level in (("Boats", 1), ("Oars", 2))
    ]
    found = Cutter(count=count, max_tokens=16).cut(text, headings)
    assert [(one.headings, text[one.start : one.end]) for one in found] == [
        ((), "# Boats\n\nthey float"),
        (("Boats",), "## Oars\n\nof wood"),
    ]
