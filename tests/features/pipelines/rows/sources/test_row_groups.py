"""Tests of small Parquet files that would fill the memory: refused by their metadata, before a page is read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from features.pipelines.rows.sources.row_groups import rows_at_once
from jobs.errors import InputError

ROOT = Path(__file__).resolve().parents[5]
NUM_VALUES = 12_000_000
READ = """
import sys
import pyarrow as pa
from jobs.errors import InputError
from features.pipelines.rows.sources.reading import open_source
try:
    print(sum(1 for _ in open_source(sys.argv[1]).read()))
except InputError as error:
    print(error.message)
print(pa.default_memory_pool().max_memory())
"""


def one_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


@pytest.mark.parametrize(
    "values",
    [
        lambda: pa.array(np.zeros(NUM_VALUES, np.int64)),
        lambda: pa.nulls(NUM_VALUES, pa.int64()),
        lambda: pa.DictionaryArray.from_arrays(np.zeros(NUM_VALUES, np.int32), ["a text"]),
    ],
    ids=["equal", "null", "text"],
)
def test_a_list_of_millions_of_equal_values_fills_no_memory(tmp_path: Path, values: Callable[[], pa.Array]) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": one_list(values())}), path, compression="zstd")
    assert path.stat().st_size < 2000
    reader = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    said, peak_bytes = reader.stdout.splitlines()
    assert f"{path}, row group 1: its " in said
    assert "Write the file with fewer rows in a group" in said
    assert int(peak_bytes) < 1 << 20


def rows_of(path: Path, table: pa.Table) -> int:
    pq.write_table(table, path, compression="zstd")
    return rows_at_once("a.parquet", pq.ParquetFile(path), 0, max_rows=512, max_bytes=1 << 20)


def test_lists_of_many_values_are_read_some_rows_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    lists = pa.FixedSizeListArray.from_arrays(np.random.default_rng(1).random(768 * 1000), 768)
    assert rows_of(path, pa.table({"x": lists})) == (1 << 20) // (768 * 12)
    assert rows_of(path, pa.table({"x": [[1], [2]], "y": ["a", "b"]})) == 512


def test_what_unpacks_to_more_than_many_times_its_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("features.pipelines.rows.sources.row_groups.MAX_UNPACKED_BYTES", 1 << 20)
    words = np.random.default_rng(1).integers(0, 1 << 60, 200_000)
    assert rows_of(tmp_path / "a.parquet", pa.table({"x": words})) == 512
    with pytest.raises(InputError, match=r"a\.parquet, row group 1: its [0-9,]+ bytes would have 2,[0-9,]+ unpacked"):
        rows_of(tmp_path / "b.parquet", pa.table({"x": ["x" * (2 << 20)]}))
