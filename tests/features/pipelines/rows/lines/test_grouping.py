"""Tests of grouping equal rows: each is in one group, in its order, whatever its values are."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.pipelines.rows.lines import grouping
from features.pipelines.rows.lines.grouping import grouped
from jobs.errors import InputError, ServiceError, TooLargeError

MANY = 1 << 20
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=1), inner, max_size=2),
    max_leaves=4,
)


ROWS = st.lists(st.tuples(VALUES, st.sampled_from("xyz")), max_size=20)


@given(ROWS)
def test_every_row_is_in_the_one_group_that_it_is_like(pairs: list[tuple[Any, str]]) -> None:
    rows: list[dict[str, Any]] = [{"a": value, "b": other} for value, other in pairs]
    expected: dict[bytes, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        expected[orjson.dumps(row["a"], option=orjson.OPT_SORT_KEYS)].append(row)
    groups = list(grouped(rows, ["a"], max_bytes=MANY))
    assert [group.rows for group in groups] == list(expected.values())
    assert [group.num_rows for group in groups] == [len(own) for own in expected.values()]
    assert [group.values["a"] for group in groups] == [orjson.loads(key) for key in expected]


def test_integers_of_any_length_keep_their_digits() -> None:
    rows = [{"a": {"y": 2**70, "x": None}, "n": 10**25}, {"a": {"x": None, "y": 2**70}, "n": -(10**30)}]
    (group,) = grouped(rows, ["a"], max_bytes=MANY)
    assert (group.values, group.rows) == ({"a": rows[0]["a"]}, rows)


def test_rows_are_alike_in_all_columns_and_one_that_lacks_a_column_has_null_there() -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"a": 1}, {"a": 1, "b": None}, {"a": 2, "b": "x"}]
    groups = list(grouped(rows, ["a", "b"], max_bytes=MANY))
    assert [(group.values, group.num_rows) for group in groups] == [
        ({"a": 1, "b": "x"}, 1),
        ({"a": 1, "b": None}, 2),
        ({"a": 2, "b": "x"}, 1),
    ]


def test_no_rows_are_no_groups() -> None:
    assert list(grouped([], ["a"], max_bytes=MANY)) == []


def test_a_column_that_no_row_has_is_named_with_those_there_are() -> None:
    with pytest.raises(InputError, match="no row has the column 'c' of group_by; there are: a, b"):
        list(grouped([{"a": 1}, {"b": 1}], ["a", "c"], max_bytes=MANY))


def test_a_group_of_more_bytes_than_a_prompt_may_see_has_no_rows_and_costs_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grouping, "MAX_GROUP_BYTES", 20)
    large, small = grouped([{"a": 1}, {"a": 1}, {"a": 2}, {"a": 1}], ["a"], max_bytes=MANY)
    assert (large.rows, large.num_rows) == (None, 3)
    assert small.rows == [{"a": 2}]


def test_more_rows_than_a_file_may_have_are_refused() -> None:
    with pytest.raises(TooLargeError, match="more than 20 bytes"):
        list(grouped(({"a": number} for number in range(10)), ["a"], max_bytes=20))


def test_a_disk_without_room_is_a_trouble_that_may_be_over_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __enter__(self) -> Any:
            raise OSError(28, "No space left on device")

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    with pytest.raises(ServiceError, match=r"grouped in /.*: No space left on device"):
        list(grouped([{"a": 1}], ["a"], max_bytes=MANY))
