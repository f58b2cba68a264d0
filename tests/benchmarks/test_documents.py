"""Tests of the benchmark of the same documents through a service and the bare engine, and its cost per line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from benchmarks import documents
from benchmarks.documents import Turn


class FakeBatches:
    """Records submissions; each role has spent a second more at each call."""

    def __init__(self, *, is_here: bool = True) -> None:
        self.files: list[list[dict[str, Any]]] = []
        self._is_here = is_here
        self._num_looks = 0

    def submit_file(self, content: bytes) -> str:
        self.files.append([json.loads(line) for line in content.splitlines()])
        return f"batch_{len(self.files)}"

    def wait_for(self, batch_id: str, status: str, *, poll_seconds: float) -> None:
        assert (batch_id, status) == (f"batch_{len(self.files)}", "completed")

    def processor_seconds(self) -> dict[str, float]:
        self._num_looks += 1
        return dict.fromkeys(("engine", "worker", "postgres"), float(self._num_looks)) if self._is_here else {}


def test_what_is_outside_the_engine_is_counted_for_a_line() -> None:
    turn = Turn(
        num_lines=1000,
        service_seconds=12.0,
        spent_before={"engine": 1.0, "worker": 2.0},
        spent_after={"engine": 9.0, "worker": 3.0, "api": 0.5},
        bare_seconds=10.0,
        bare_processor_seconds=8.0,
    )
    assert (turn.ratio, turn.ms_outside) == (1.2, 1.5)
    assert "12.0 s, the bare engine 10.0 s, 1.20 times" in turn.shown()
    assert "1.50 ms outside the engine; bare 8.00" in turn.shown()


@pytest.mark.parametrize("is_here", [True, False])
def test_each_turn_runs_documents_of_its_own_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_here: bool
) -> None:
    bare: list[Sequence[Mapping[str, Any]]] = []
    monkeypatch.setattr(documents, "_bare_engine", lambda: None)
    monkeypatch.setattr(documents, "_run_bare", lambda _llm, lines: bare.append(lines))
    batches = FakeBatches(is_here=is_here)
    documents.measure(batches, 3, turns=2)
    assert bare == batches.files
    texts = [line["body"]["messages"][-1]["content"] for file in batches.files for line in file]
    assert [len(file) for file in batches.files[1:]] == [3, 3]
    assert len(set(texts)) == len(texts), "no document comes again"
    printed = capsys.readouterr().out
    assert "medians of 2 turns" in printed
    assert ("666.67 ms outside the engine" in printed) is is_here
