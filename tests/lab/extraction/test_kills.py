"""Tests of the benchmark of killed extractions at a small size, and of its verdict on wrong records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.extraction.__main__ import main
from lab.extraction.killed_runs import Billed, KilledRun
from lab.extraction.kills import killed, make_files


@pytest.mark.long
@pytest.mark.timeout(600)  # two starts of everything
def test_every_document_comes_out_once_though_everything_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["kills", "--documents", "12", "--broken", "0.25", "--kills", "1", "--run", "embedded", "--json"]
    status = main(asked)
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["num_once"], found["num_as_expected"], len(found["killed_at"])) == (12, 12, 1)
    assert sum(found["codes"].values()) == found["num_broken"] == 3
    assert found["billed"] == {
        "input_tokens": found["input_tokens"],
        "output_tokens": found["output_tokens"],
        "findings": [],
    }
    assert status == 0


class FakeRun(KilledRun):
    """Done at once, with the given records and bill."""

    name, units_a_document = "fake", 1

    def __init__(self, records: list[dict[str, Any]], billed: Billed | None) -> None:
        super().__init__(Path(), ())
        self._given = records, billed
        self.num_starts = 0

    def start(self) -> None:
        self.num_starts += 1

    def progress(self) -> int:
        return 100

    def has_ended(self) -> bool:
        return True

    def billed(self) -> Billed | None:
        return self._given[1]

    def records(self) -> list[dict[str, Any]]:
        return self._given[0]

    def kill(self) -> None:
        """Kill nothing."""


def record(name: str, code: str | None = None) -> dict[str, Any]:
    error = None if code is None else {"code": code}
    return {"document": f"in/{name}", "error": error, "usage": {"input_tokens": 7, "output_tokens": 3}}


EXPECTED = {"a.pdf": None, "b.txt": "empty"}
GOOD = [record("a.pdf"), record("b.txt", "empty")]
BILL = Billed(input_tokens=14, output_tokens=6, findings=())


def test_a_run_whose_documents_and_bill_are_right_is_whole() -> None:
    run = FakeRun(GOOD, BILL)
    found = killed(run, EXPECTED, kills=3, seed=0)
    assert (found.is_whole, run.num_starts, len(found.killed_at)) == (True, 4, 3)


@pytest.mark.parametrize(
    ("records", "billed"),
    [
        ([GOOD[0]], BILL),
        ([*GOOD, GOOD[1]], BILL),
        ([GOOD[1], GOOD[0]], BILL),
        ([GOOD[0], record("b.txt", "damaged")], BILL),
        ([record("a.pdf", "engine_failure"), GOOD[1]], BILL),
        (GOOD, Billed(input_tokens=21, output_tokens=6, findings=())),
        (GOOD, Billed(input_tokens=14, output_tokens=6, findings=("batch_1: 1 line has no result",))),
        (GOOD, None),
    ],
    ids=["missing", "repeated", "order", "code", "failed", "billed twice", "audit", "not seen"],
)
def test_what_is_not_as_it_should_be_is_seen(records: list[dict[str, Any]], billed: Billed | None) -> None:
    assert not killed(FakeRun(records, billed), EXPECTED, kills=1, seed=0).is_whole


def test_the_same_seed_makes_the_same_files_and_breaks_the_share_that_is_asked_for(tmp_path: Path) -> None:
    first, second = (make_files(tmp_path / name, 20, broken=0.2, seed=4) for name in "ab")
    assert first == second
    assert sum(code is not None for code in first.values()) == 4
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in first)
