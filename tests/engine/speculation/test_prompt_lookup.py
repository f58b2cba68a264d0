from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speculation.prompt_lookup import Match, PromptLookup, continuation

_MAX_CANDIDATES = 16

texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)
limits = st.tuples(st.integers(1, 3), st.integers(0, 5))


def slow_find(token_ids: list[int], *, min_match: int, max_match: int) -> Match | None:
    """Compare the end with every earlier place, latest first; the longest wins, of equal ones the latest."""
    size = len(token_ids)
    found: list[Match] = []
    for end in range(size - 1, min_match - 1, -1):
        lengths = [n for n in range(1, max_match + 1) if n <= end and token_ids[end - n : end] == token_ids[size - n :]]
        if lengths and max(lengths) >= min_match:
            found.append(Match(end, max(lengths)))
    return max(found[:_MAX_CANDIDATES], key=lambda match: match.length, default=None)


def find(token_ids: list[int], *, min_match: int = 1, max_match: int = 4) -> Match | None:
    return PromptLookup(min_match=min_match, max_match=max_match).find(token_ids)


@settings(deadline=None)
@given(token_ids=texts, limits=limits)
def test_the_index_finds_what_a_naive_search_finds_at_every_length(
    token_ids: list[int], limits: tuple[int, int]
) -> None:
    min_match, max_match = limits[0], limits[0] + limits[1]
    lookup = PromptLookup(min_match=min_match, max_match=max_match)
    grown: list[int] = []
    for token_id in token_ids:
        grown.append(token_id)
        assert lookup.find(grown) == slow_find(grown, min_match=min_match, max_match=max_match)


@settings(deadline=None)
@given(start=texts, more=texts, limits=limits)
def test_many_tokens_at_once_are_indexed_like_single_ones(
    start: list[int], more: list[int], limits: tuple[int, int]
) -> None:
    lookup = PromptLookup(min_match=limits[0], max_match=sum(limits))
    lookup.find(start)
    whole = start + more
    assert lookup.find(whole) == find(whole, min_match=limits[0], max_match=sum(limits))


@settings(deadline=None)
@given(token_ids=texts, count=st.integers(1, 20))
def test_a_draft_is_what_followed_the_same_tokens_before(token_ids: list[int], count: int) -> None:
    match = find(token_ids)
    if match is None:
        assert token_ids[-1] not in token_ids[:-1]
        return
    assert token_ids[match.end - match.length : match.end] == token_ids[-match.length :]
    draft = continuation(token_ids, match.end, count)
    occurred = token_ids[match.end :][:count]
    assert draft[: len(occurred)] == occurred
    # Past the end it goes on copying, itself included.
    copied = list(token_ids)
    for index in range(count):
        copied.append(copied[match.end + index])
    assert draft == copied[len(token_ids) :]


def test_the_longest_match_wins_and_among_equals_the_latest() -> None:
    assert find([1, 2, 3, 7, 2, 3, 8, 9, 3, 1, 2, 3]) == Match(3, 3)
    assert find([5, 6, 5, 7, 5]) == Match(3, 1)


def test_a_match_shorter_than_the_least_is_none() -> None:
    assert find([1, 2, 9, 2], min_match=2) is None
    assert find([2], min_match=2) is None
    assert find([1, 2, 9, 1, 2], min_match=2) == Match(2, 2)


def test_a_frequent_token_is_searched_for_at_its_last_places_only() -> None:
    token_ids = [1, 2, 3, 4, *[9, 4] * 16, 2, 3, 4]
    assert find(token_ids) == Match(len(token_ids) - 3, 1)


def test_a_loop_is_continued_to_any_length() -> None:
    token_ids = [8, 5, 6, 7, 5, 6, 7]
    match = find(token_ids)
    assert match is not None
    assert continuation(token_ids, match.end, 7) == [5, 6, 7, 5, 6, 7, 5]
