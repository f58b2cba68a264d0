"""Tests of rows of files, folders and stores, in order, and of errors for unreadable ones."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import obstore
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import from_url

from features.pipelines.rows.outputs.tables import open_table
from features.pipelines.rows.sources import formats
from features.pipelines.rows.sources.files import Format
from features.pipelines.rows.sources.reading import open_source
from jobs.errors import InputError, ServiceError
from lab.s3_server import S3Server
from tokenmill.row_json import dumps


def rows(spec: object) -> list[dict[str, Any]]:
    return [dict(row.values) for row in open_source(str(spec)).read()]


_PLACE = re.compile(r"row (\d+)(?: \(line (\d+)\))?: ")


def refusal(spec: object) -> InputError:
    with pytest.raises(InputError) as caught:
        rows(spec)
    return caught.value


def place_of(error: InputError) -> tuple[int, int | None] | None:
    """Return the row that an error names, and its line."""
    place = _PLACE.search(error.message)
    return None if place is None else (int(place[1]), int(place[2]) if place[2] else None)


def names(error: InputError, *values: object) -> bool:
    """Tell whether the message has these values, in this order, after the row that it names."""
    rest = _PLACE.split(error.message)[-1]
    return re.search(".*".join(rf"(?<!\w){re.escape(str(value))}" for value in values), rest) is not None


def test_the_three_formats_hold_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes('\ufeffid,text\n1,"a, ""b""\nc"\n\n2,é\n'.encode())
    (tmp_path / "a.jsonl").write_bytes(
        '\ufeff{"id": "1", "text": "a, \\"b\\"\\nc"}\n\n{"id": "2", "text": "é"}'.encode()
    )
    pq.write_table(pa.table({"id": ["1", "2"], "text": ['a, "b"\nc', "é"]}), tmp_path / "a.parquet")
    expected = [{"id": "1", "text": 'a, "b"\nc'}, {"id": "2", "text": "é"}]
    assert [rows(tmp_path / name) for name in ("a.csv", "a.jsonl", "a.parquet")] == [expected] * 3
    assert [open_source(str(tmp_path / name)).columns for name in ("a.csv", "a.parquet", "a.jsonl")] == [
        ["id", "text"],
        ["id", "text"],
        None,
    ]


def test_packed_files_are_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n1\n"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n'))
    assert (rows(tmp_path / "a.csv.gz"), rows(tmp_path / "b.jsonl.gz")) == ([{"x": "1"}], [{"x": 1}])
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"x\n" + b"1\n" * 1000)[:-12])
    assert names(refusal(tmp_path / "c.csv.gz"), tmp_path / "c.csv.gz")


@pytest.mark.parametrize(
    ("name", "content", "place", "values"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', (2, None), ["JSON"]),
        ("a.jsonl", b'{"a": ' + b"1" * 5000 + b"}\n", (1, None), ["JSON", "5,000"]),
        ("a.jsonl", b"1\n", (1, None), ["JSON", '{"text": "…"}']),
        ("a.jsonl", b"[1]\n", (1, None), ["JSON", "jq -c '.[]'"]),
        ("a.jsonl", b'{"a": "\xff"}\n', (1, None), ["JSON"]),
        ("a.csv", b"a,b\n1,2\n3\n", (2, 3), [1, 2]),
        ("a.csv", b'a,b\n"x\ny",2\n1,2,3\n', (2, 4), [3, 2]),
        ("a.csv", b'a\n"x\n', (1, 2), []),
        ("a.csv", b"a\nx\n\xc3\xa9\n\xff\n", (3, 4), ["UTF-8"]),
        ("a.csv", b"a,a\n1,2\n", None, ["a.csv", "'a'"]),
        ("a.csv", b"a,\n1,2\n", None, ["a.csv", 2]),
        ("a.csv", b"", None, ["a.csv"]),
        ("a.parquet", b"PAR1", None, ["a.parquet"]),
        ("a.txt", b"x", None, ["a.txt", ".jsonl", ".csv", ".parquet"]),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    tmp_path: Path, name: str, content: bytes, place: tuple[int, int | None] | None, values: Sequence[object]
) -> None:
    (tmp_path / name).write_bytes(content)
    error = refusal(tmp_path / name)
    assert f"{tmp_path}/{name}" in error.message
    assert error.code == ("invalid_request" if place is None else "invalid_source")
    assert place_of(error) == place
    assert names(error, *values)


def test_a_row_without_an_end_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("features.pipelines.rows.sources.formats.MAX_ROW_BYTES", 100)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": "' + "x" * 200 + '"}\n')
    error = refusal(tmp_path / "a.jsonl")
    assert (place_of(error), names(error, 100)) == ((2, None), True)


@pytest.mark.parametrize(
    ("content", "place", "values"),
    [
        (b"a" * 10_000, (0, 1), [100]),
        (b"a\n1\n" + b"b" * 10_000, (2, 3), [100]),
        (b'a,b,c\n"' + b'x\n",y,"' * 100, (1, 16), [100]),
        (b"a,b,c,d\n", None, [4, 3]),
    ],
    ids=["header", "line", "lines", "columns"],
)
def test_a_record_of_csv_fills_no_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    place: tuple[int, int] | None,
    values: Sequence[object],
) -> None:
    monkeypatch.setattr(formats, "MAX_ROW_BYTES", 100)
    monkeypatch.setattr(formats, "MAX_COLUMNS", 3)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(content))
    error = refusal(tmp_path / "a.csv.gz")
    assert (place_of(error), names(error, *values)) == (place, True)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_record_of_csv_may_be_as_long_as_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    record = f'1,"é\n3456"{end}'
    monkeypatch.setattr(formats, "MAX_ROW_BYTES", len(record))
    (tmp_path / "a.csv").write_bytes((f"a,b{end}" + (record + end) * 40).encode())
    assert rows(tmp_path / "a.csv") == [{"a": "1", "b": "é\n3456"}] * 40


SHARED = "x" * 600


@pytest.mark.parametrize(
    "column",
    [
        pa.array([SHARED] * 500),
        pa.array([SHARED] * 500).dictionary_encode(),
        pa.array([{"a": [SHARED]}] * 500),
        pa.array([[("k", SHARED)]] * 500, pa.map_(pa.string(), pa.string())),
        pa.array([SHARED.encode()] * 500, pa.binary(600)),
    ],
    ids=["text", "dictionary", "nested", "map", "fixed"],
)
def test_a_value_that_many_rows_of_parquet_share_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: pa.Array
) -> None:
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet", compression="zstd")
    decoded: list[int] = []
    real = formats._small_parts

    def small_parts(*given: Any) -> Iterator[Any]:
        for part in real(*given):
            decoded.append(part.num_rows)
            yield part

    monkeypatch.setattr(formats, "MAX_ROW_BYTES", 2000)
    monkeypatch.setattr(formats, "_small_parts", small_parts)
    assert rows(tmp_path / "a.parquet") == pa.table({"x": column}).to_pylist()
    assert max(decoded) <= 3
    monkeypatch.setattr(formats, "MAX_ROW_BYTES", 100)
    error = refusal(tmp_path / "a.parquet")
    assert (place_of(error), names(error, 100)) == ((1, None), True)


def test_every_type_of_parquet_is_read_as_it_is(tmp_path: Path) -> None:
    table = pa.table({
        "json": pa.array(['{"a": 1}', None], pa.json_()), "none": pa.nulls(2),
        "large": pa.array(["a", None], pa.large_string()),
        "view": pa.array(["a", "b"], pa.string_view()),
        "decimal": pa.array([Decimal("1.5"), None], pa.decimal128(5, 2)),
        "lists": pa.array([[["a"], None], None]), "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
        "bytes": pa.array([b"a", None]), "dictionary": pa.array([7, 7]).dictionary_encode(), "flag": [True, None],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    assert rows(tmp_path / "a.parquet") == pq.read_table(tmp_path / "a.parquet").to_pylist()


NANOSECONDS = [1767312245123456789, None, 1767312245000000000, -1]


def test_nanoseconds_of_parquet_come_through_to_each_output(tmp_path: Path) -> None:
    zoned = pa.timestamp("ns", tz="Europe/Berlin")
    table = pa.table({
        "when": pa.array(NANOSECONDS, zoned), "time": pa.array([1, None, 1000, 86399999999999], pa.time64("ns")),
        "took": pa.array(NANOSECONDS, pa.duration("ns")),
        "nested": pa.array([[{"a": each}] for each in NANOSECONDS], pa.list_(pa.struct([("a", pa.timestamp("ns"))]))),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    read = rows(tmp_path / "a.parquet")
    assert orjson.loads(dumps(read)) == [
        {"when": "2026-01-02T01:04:05.123456789+01:00", "time": "00:00:00.000000001",
         "took": "20455 days, 0:04:05.123456789", "nested": [{"a": "2026-01-02T00:04:05.123456789"}]},
        {"when": None, "time": None, "took": None, "nested": [{"a": None}]},
        {"when": "2026-01-02T01:04:05+01:00", "time": "00:00:00.000001",
         "took": "20455 days, 0:04:05", "nested": [{"a": "2026-01-02T00:04:05"}]},
        {"when": "1970-01-01T00:59:59.999999999+01:00", "time": "23:59:59.999999999",
         "took": "-1 day, 23:59:59.999999999", "nested": [{"a": "1969-12-31T23:59:59.999999999"}]},
    ]  # fmt: skip
    target = io.BytesIO()
    with open_table(target, Format.PARQUET, columns=None, schema=table.schema) as writer:
        for row in read:
            writer.write(row)
    assert pq.read_table(target) == table


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([10**9], pa.date32()), "date32[day]"),
        (pa.array([4 * 10**11], pa.timestamp("s")), "timestamp[ms]"),
        (pa.array([b"\xff"]).cast(pa.string(), safe=False), "string"),
    ],
    ids=["day", "second", "text"],
)
def test_what_python_has_no_value_for_is_refused_with_its_column(tmp_path: Path, column: pa.Array, kind: str) -> None:
    pq.write_table(pa.table({"far": column}), tmp_path / "a.parquet")
    assert names(refusal(tmp_path / "a.parquet"), tmp_path / "a.parquet", "'far'", kind)


def test_a_folder_and_a_glob_are_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/2.csv", "a/1.csv", "a/_SUCCESS", "a/.3.csv.part", "a/notes.txt", "_temporary/4.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"x\n{name}\n")
    assert [row["x"] for row in rows(tmp_path)] == ["a/1.csv", "b/2.csv"]
    assert [row["x"] for row in rows(tmp_path / "*/*.csv")] == ["_temporary/4.csv", "a/1.csv", "b/2.csv"]
    assert names(refusal(tmp_path / "*.csv"), tmp_path / "*.csv", ".jsonl")


def test_files_of_one_source_have_one_form(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text("y\n1\n")
    assert names(refusal(tmp_path / "*.csv"), tmp_path / "b.csv", tmp_path / "a.csv", "y", "x")
    (tmp_path / "b.jsonl").write_text('{"x": 1}\n')
    assert names(refusal(tmp_path), tmp_path, "csv", "jsonl")


def test_a_prefix_of_a_store_is_read_as_a_folder_is(tmp_path: Path) -> None:
    for name in ("day/a 1.csv", "day/b.csv", "day/_SUCCESS", "other/c.csv", "day/sub/d.csv", "day.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"x\n{name}\n")
    url = f"file://{tmp_path}"
    assert [row["x"] for row in rows(f"{url}/day/")] == ["day/a 1.csv", "day/b.csv", "day/sub/d.csv"]
    assert [row["x"] for row in rows(f"{url}/day/*.csv")] == ["day/a 1.csv", "day/b.csv"]
    assert [row["x"] for row in rows(f"{url}/**/d.csv")] == ["day/sub/d.csv"]
    assert [row["x"] for row in rows(f"{url}/day/b.csv")] == ["day/b.csv"]
    for wrong, values in {
        f"{url}/none/": [f"{url}/none/", ".jsonl"],
        f"{url}/day/none.csv": [f"{url}/day/none.csv"],
        "http://example.com/a.csv": ["http://", "s3", "file"],
        "s3:///a.csv": ["s3:///a.csv", "s3://bucket"],
    }.items():
        assert names(refusal(wrong), *values), wrong


def test_parquet_is_read_from_a_store_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": list(range(2000))}), tmp_path / "a.parquet", row_group_size=300)
    assert [row["x"] for row in rows(f"file://{tmp_path}/a.parquet")] == list(range(2000))


def test_a_prefix_of_a_bucket_is_listed_and_read(s3: S3Server) -> None:
    store = from_url(f"s3://{s3.bucket}")
    for number in range(3):
        obstore.put(store, f"day/{number}.csv", f"x\n{number}\n".encode())
    obstore.put(store, "day/_SUCCESS", b"")
    parquet = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": list(range(1000))}), parquet)
    obstore.put(store, "tables/a.parquet", parquet.getvalue().to_pybytes())
    assert [row["x"] for row in rows(f"s3://{s3.bucket}/day/")] == ["0", "1", "2"]
    assert [row["x"] for row in rows(f"s3://{s3.bucket}/day/[12].csv")] == ["1", "2"]
    assert [row["x"] for row in rows(f"s3://{s3.bucket}/tables/a.parquet")] == list(range(1000))
    source = open_source(f"s3://{s3.bucket}/day/")
    obstore.delete(store, "day/1.csv")
    with pytest.raises(InputError, match=r"s3://.*/day/1\.csv"):
        list(source.read())


def test_an_identity_changes_with_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n")
    for spec in (str(path), f"file://{path}"):
        path.write_text("x\n1\n")
        source = open_source(spec)
        before = source.identity()
        assert source.identity() == before
        path.write_text("x\n2222\n")
        assert source.identity() != before


def test_a_file_that_is_gone_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n")
    source = open_source(str(path))
    path.unlink()
    with pytest.raises(InputError, match=re.escape(str(path))):
        list(source.read())


def test_a_store_that_cannot_be_reached_is_an_error_of_a_service_with_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-central-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(ServiceError, match="s3://bucket/day/"):
        open_source("s3://bucket/day/")
