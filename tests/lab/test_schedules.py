"""A test of the schedules' benchmark at a small size."""

from __future__ import annotations

import re

import pytest

from cli.embedded.launcher import BenchLauncher
from lab.schedules.command import parse, run

pytestmark = pytest.mark.long


def test_every_run_is_handed_in_and_its_cost_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--schedules", "7", "--tenants", "3", "--rows", "2", "--most-seconds", "120", "--top", "3")
    assert run(parse(few), BenchLauncher) == 0
    printed = capsys.readouterr().out
    times = r"10 % \d+\.\d, 50 % \d+\.\d, 90 % \d+\.\d, 100 % \d+\.\d"
    for shown in (
        rf"  handed in: {times}",
        rf"  validated: {times}",
        r"processor ms a run: postgres \d+\.\d, .*control-0 \d+\.\d, control-0 children \d+\.\d; together",
        r"[1-9]\d+\.\d statements and [1-9]\d*\.\d transactions a run",
    ):
        assert re.search(shown, printed), shown
