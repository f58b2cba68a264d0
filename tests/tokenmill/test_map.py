"""Tests of `tokenmill.map`: three lines of Python for each kind of table, which is returned as the same kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
from openai import OpenAI
from pydantic import BaseModel

import tokenmill
from cli.mapping import called
from cli.mapping.called import answer as answered_here
from cli.mapping.carried import source_of
from cli.service.service import Service
from features.pipelines.rows.sources.source import Source
from tests.cli.fake_service import FakeClient
from tokenmill import mapping
from tokenmill.tables import table_of

SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}, "stars": {"type": "integer"}}}
ROWS: list[dict[str, Any]] = [{"text": "good", "n": 1}, {"text": "bad", "n": None}, {"text": "so", "n": 3}]


class Review(BaseModel):
    """A pydantic model."""

    label: str
    stars: int | None = None


class Shop:
    """A target that answers by itself: the text of the prompt, and nothing for "bad"."""

    name = "shop"
    model = "demo"

    def __init__(self) -> None:
        self.client = FakeClient(answer=self._answer)
        self.num_checks = 0
        self.dies = False

    def check_schema(self, schema: Any) -> None:
        assert schema["type"] == "object"

    def require_valid_lines(self, lines: Iterator[bytes], **_: object) -> None:
        self.num_checks += 1
        assert {json.loads(line)["body"]["model"] for line in lines} == {"demo"}

    @contextmanager
    def opened(self, _say: object) -> Iterator[Service]:
        if self.dies:
            raise KeyboardInterrupt
        yield Service(client=cast(OpenAI, self.client), model=self.model, window="30d", is_here=True)

    def _answer(self, line: dict[str, Any]) -> dict[str, Any]:
        text = line["body"]["messages"][-1]["content"]
        if text == "bad":
            return {"error": {"code": "x", "message": "no"}}
        choice = {"message": {"content": json.dumps({"label": text, "stars": len(text)})}, "finish_reason": "stop"}
        return {"response": {"status_code": 200, "body": {"choices": [choice]}}}


class AnsweringHere(mapping.Answering):
    """A call that is answered in this process."""

    is_taken = True

    def __init__(self, folder: Path, content: bytes) -> None:
        self._folder, self._call = folder, json.loads(content)

    def __exit__(self, *_: object) -> None: ...

    def are_columns_there(self) -> bool:
        self._status = answered_here(self._folder, self._call, is_taken=lambda: self.is_taken)
        return self._status == 0

    def take(self) -> None: ...

    def status(self) -> int:
        return self._status


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls be answered in this process, where `monkeypatch` works."""
    monkeypatch.setattr(mapping, "Answering", AnsweringHere)


def carried(rows: Any, folder: Path) -> Source:
    """Return rows as received by the process that answers a call."""
    table, path = table_of(rows), folder / "table"
    table.write(path)
    source, _ = source_of(path, table.form)
    return source


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shop:
    shop = Shop()
    monkeypatch.delenv("TOKENMILL_BASE_URL", raising=False)
    monkeypatch.setenv("TOKENMILL_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(called, "local_target", lambda *_args, **_options: shop)
    in_this_process(monkeypatch)
    return shop


def mapped(rows: Any, **more: Any) -> Any:
    return tokenmill.map(rows, **{"prompt": "{{ text }}", "schema": SCHEMA, "model": "demo", **more})


EXPECTED = [("good", "good", 4, None), ("bad", None, None, "no (x)"), ("so", "so", 2, None)]


def shown(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["text"], row["label"], row["stars"], row["error"]) for row in rows]


def test_a_list_of_dicts_comes_back_as_one(shop: Shop, tmp_path: Path) -> None:
    given = [dict(row) for row in ROWS]
    found = mapped(given)
    assert type(found) is list
    assert shown(found) == EXPECTED
    assert [row["n"] for row in found] == [1, None, 3]
    assert given == ROWS
    assert list(tmp_path.glob("runs/*")) == []
    assert shop.client.stored == {}


@pytest.mark.usefixtures("shop")
def test_an_arrow_table_keeps_its_columns_and_their_types() -> None:
    given = pa.table({"text": [row["text"] for row in ROWS], "day": [date(2026, 1, number) for number in (1, 2, 3)]})
    found = mapped(given, prefix="a_", schema=Review)
    assert type(found) is pa.Table
    assert found.select(["text", "day"]) == given
    assert [str(field.type) for field in found.schema][2:] == ["string", "int64", "string"]
    assert found.column("a_label").to_pylist() == ["good", None, "so"]


@pytest.mark.usefixtures("shop")
def test_a_pandas_frame_keeps_its_index_and_its_types() -> None:
    given = pd.DataFrame({"text": ["good", "bad", "so"], "kind": ["u", "v", "u"]}, index=[7, 3, 5])
    given["kind"] = given["kind"].astype("category")
    found = mapped(given)
    assert type(found) is pd.DataFrame
    assert list(found.index) == [7, 3, 5]
    assert str(found["kind"].dtype) == "category"
    assert found["label"].fillna("").tolist() == ["good", "", "so"]
    assert found["stars"].fillna(0).tolist() == [4, 0, 2]


@pytest.mark.usefixtures("shop")
def test_a_polars_frame_comes_back_as_one() -> None:
    given = pl.DataFrame(ROWS)
    found = mapped(given)
    assert type(found) is pl.DataFrame
    assert found.select(given.columns).equals(given)
    assert shown(found.to_dicts()) == EXPECTED


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"text": "a"}, "rows is a dict. Give a list of dicts, a pyarrow.Table, or a pandas or polars DataFrame"),
        ("in.csv", "rows is a str"),
        ([1], "row 1 is a int. Give each row as a dict of its columns."),
        ([{"text": "a"}, {1: 2}], "row 2 has the key 1. Name every column by a text, such as with str()."),
        ([{"text": {1}}], "Row 1: the row has a value that no prompt can show: text: a value of type set"),
        (pd.DataFrame({"text": [1, "a"]}), "the column 'text' of the DataFrame holds what a column of one type cannot"),
        (pd.DataFrame({"text": [1 << 70]}, dtype=object), "the column 'text' of the DataFrame holds what"),
        (pd.DataFrame({"text": [1j]}), "the column 'text' of the DataFrame holds what a column of one type cannot"),
        (pd.DataFrame({"text": pd.period_range("2026", periods=1)}), "periods, which `.astype(str)` makes texts. Make"),
        (pd.DataFrame({"text": pd.arrays.SparseArray([1])}), "Sparse pandas data (column text) not supported. Make"),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), "the table has the column 'text' twice. Rename one."),
        (pd.DataFrame({"text": ["a"], 7: [1]}), "the DataFrame has a column named 7, which is no text. Rename it"),
        (pl.DataFrame({"text": [object()]}), "the column 'text' of the DataFrame holds what a column of one type"),
        (pl.DataFrame({"text": [1 << 100]}, schema={"text": pl.Int128}), "the column 'text' of the DataFrame holds"),
        (
            pa.table({"text": pa.array([10**9], pa.date32())}),
            "column 'text' of type date32[day] has a value that cannot be",
        ),
        (pa.dataset.dataset(pa.table({"text": ["a"]})), "rows is a InMemoryDataset. Give a list of dicts"),
        ([], "the table has no rows"),
        ([{"words": "a"}], "the only row of the table does not fit the prompt. Row 1: line 1, column 4 of the prompt"),
        (pa.table([[1], [2]], names=["a", "a"]), "the table has the column 'a' twice"),
        (pa.table({"words": ["a"]}), "the prompt takes {{ text }}, and the source has no such column"),
        (pa.table({"text": ["a"], "error": ["b"]}), "already has the column error, which the answers would replace"),
    ],
)
@pytest.mark.usefixtures("shop")
def test_what_is_no_table_for_the_prompt_is_refused(rows: Any, said: str) -> None:
    with pytest.raises(tokenmill.InputError) as caught:
        mapped(rows)
    assert said in caught.value.message


def test_an_interrupted_call_checks_its_rows_once(shop: Shop) -> None:
    shop.dies = True
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            mapped(ROWS)
    shop.dies = False
    assert shown(mapped(ROWS)) == EXPECTED
    assert (shop.num_checks, shop.client.num_batches) == (1, 1)


def test_answers_that_the_caller_did_not_take_are_kept_for_the_same_call(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AnsweringHere, "is_taken", False)
    mapped(ROWS)
    assert shop.client.num_batches == 1
    assert len(shop.client.stored) == 4, "a batch, its input and its results"
    monkeypatch.setattr(AnsweringHere, "is_taken", True)
    assert shown(mapped(ROWS)) == EXPECTED
    assert (shop.client.num_batches, shop.client.stored) == (1, {})


@pytest.mark.parametrize("kind", [list, pa.Table.from_pylist])
def test_rows_that_are_read_again_are_the_same(kind: Callable[[Any], Any], tmp_path: Path) -> None:
    same, fewer = (carried(kind(rows), tmp_path).identity() for rows in ([dict(row) for row in ROWS], ROWS[:2]))
    source = carried(kind(ROWS), tmp_path)
    assert source.identity() == same != fewer
    assert [row.values for row in source.read()] == [row.values for row in source.read()] == ROWS


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1 << 70, str(1 << 70)),
        (np.float64(1.5), "1.5"),
        (np.array([1, 2]), "[1, 2]"),
        (pd.Timestamp("2026-01-02 12:00:00.123456789", tz="Europe/Berlin"), "2026-01-02T12:00:00.123456789+01:00"),
        (pd.NaT, "None"),
    ],
    ids=repr,
)
@pytest.mark.usefixtures("shop")
def test_values_of_other_libraries_are_shown_and_come_back(value: Any, shown: str) -> None:
    (row,) = mapped([{"text": value, "other": object}])
    assert row["label"] == shown
    assert row["text"] is value


def test_arrays_that_differ_in_their_middle_are_different_rows(tmp_path: Path) -> None:
    arrays = np.zeros((2, 10_000))
    arrays[1, 5_000] = 1
    assert len({carried([{"a": array}], tmp_path).identity() for array in arrays}) == 2


def test_a_server_is_named_by_its_url_and_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENMILL_API_KEY", raising=False)
    with pytest.raises(tokenmill.InputError, match="no API key was given for http://127"):
        mapped(ROWS, base_url="http://127.0.0.1:9/v1")
    with pytest.raises(tokenmill.InputError, match="must begin with http"):
        mapped(ROWS, base_url="127.0.0.1:9/v1", api_key="k")
    with pytest.raises(tokenmill.TokenmillError, match="cannot reach http://127"):
        mapped(ROWS, base_url="http://127.0.0.1:9/v1", api_key="k")


def test_a_prompt_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tokenmill.InputError, match="cannot read the prompt"):
        tokenmill.map([{"text": "a"}], prompt=tmp_path / "nowhere.j2")
