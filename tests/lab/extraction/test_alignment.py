"""Tests of the alignment benchmark: its texts are reproducible, and its counts are right."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from lab.extraction.__main__ import main
from lab.extraction.alignment import NOISES, generated_text, quoted_spans


def test_texts_and_quotes_come_from_the_seed() -> None:
    first, second = (generated_text(random.Random("7 0")) for _ in range(2))
    assert first == second != generated_text(random.Random("7 1"))
    spans = quoted_spans(first, random.Random(1))
    assert len(spans) == 10
    assert all(not one.overlaps(other) for one, other in itertools.pairwise(spans))
    assert all(first[span.start].isalnum() and first[span.end - 1].isalnum() for span in spans)


def test_every_noise_but_none_changes_quotes() -> None:
    for noise, change in NOISES.items():
        changed = change("Miller, Brown & Sons of York", random.Random(3))
        assert (changed == "Miller, Brown & Sons of York") == (noise == "none")


def test_most_quotes_are_found_under_every_noise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alignment", "--texts", "4", "--json"]) == 0
    outcomes = json.loads(capsys.readouterr().out)
    assert [outcome["noise"] for outcome in outcomes] == list(NOISES)
    assert all(outcome["num_quotes"] == 40 and outcome["exact_share"] >= 0.9 for outcome in outcomes)
