"""Tests that the benchmark of reading order runs, and that its pages come from the seed."""

from __future__ import annotations

import json
import random

import pytest

from lab.extraction.__main__ import main
from lab.extraction.page_layouts import held_out, usual


@pytest.mark.parametrize("make", [usual.LAYOUTS[1], held_out.LAYOUTS[1]])
def test_the_same_seed_makes_the_same_page(make: usual.Make) -> None:
    assert make(random.Random(1)) == make(random.Random(1)) != make(random.Random(2))


def test_every_layout_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reading_order", "--files", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len({row["layout"] for row in rows}) == len(usual.LAYOUTS) + len(held_out.LAYOUTS)
    assert all(0 <= row["text_error"] <= 1 and 0 <= row["prompt_error"] <= 1 for row in rows)
    assert sum(row["num_cells"] > 0 for row in rows) == 3
