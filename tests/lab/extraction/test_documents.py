"""Tests that the benchmark of reading documents runs, and that its documents come from the seed."""

from __future__ import annotations

import json

import pytest

from lab.extraction.__main__ import main
from lab.extraction.pages import make_pdf


def test_the_same_seed_makes_the_same_pages() -> None:
    assert make_pdf(3, seed=1) == make_pdf(3, seed=1) != make_pdf(3, seed=2)


def test_rates_and_memory_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["documents", "--pages", "3", "--turns", "1", "--files", "20", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rates"]["parsed"] > 0
    assert report["rates"]["prepared"] > 0
    assert [look["num_files"] for look in report["memory"]] == list(range(2, 21, 2))
    assert all(look["warm"] > 0 and look["parent"] > 0 for look in report["memory"])
