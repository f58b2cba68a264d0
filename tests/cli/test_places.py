"""Tests of a batch that ends before its lines do: its results are kept, and only the other lines run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli.client import make_client
from cli.places.kept_results import merge
from cli.places.run_folder import RunFolder
from cli.places.stage import ResultFiles, Stage
from cli.places.submission import Submitting
from jobs.errors import ServiceError
from tests.cli.service import LINE, Service, completed, failed

NAMES = ("3", "0", "2", "1")
"""In no order: users' lines have arbitrary names."""


@dataclass(slots=True)
class Hand:
    """Acts once in place of workers, when there is a batch that was not processed yet."""

    service: Service
    work: Callable[[str], None]
    said: list[str] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def run(self, stage: Stage) -> None:
        client = make_client(self.service.base_url, self.service.api_key)
        with client:
            Submitting(client=client, window="24h", say=self.said.append, on_poll=lambda: self._look(stage)).run(stage)

    def _look(self, stage: Stage) -> None:
        batch_id = stage.run.read().batch_id
        assert batch_id is not None
        if batch_id not in self._seen:
            self._seen.add(batch_id)
            self.work(batch_id)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Return a run of four lines, the last of which has no line feed at its end."""
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps({**LINE, "custom_id": name}) for name in NAMES))
    results = ResultFiles(answers=tmp_path / "out.jsonl")
    run = RunFolder.below(tmp_path, "k")
    run.root.mkdir(parents=True)
    return Stage(run=run, lines=path, results=results, endpoint="/v1/completions")


def names(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


@pytest.mark.long
def test_lines_without_a_result_alone_run_again_and_all_results_are_in_their_order(
    service: Service, stage: Stage
) -> None:
    def cancelled(batch_id: str) -> None:
        service.cancel(batch_id, [completed(1, "0"), failed(2, "2", code="engine_failure")])

    def worked_off(batch_id: str) -> None:
        service.work_off(batch_id, [completed(0, "3"), failed(1, "1", code="engine_failure")])

    first = Hand(service, cancelled)
    with pytest.raises(ServiceError, match=r"ended as cancelled\. Results of 2 lines are kept; the same command"):
        first.run(stage)
    assert not stage.results.paths
    second = Hand(service, worked_off)
    second.run(stage)
    assert second.said == ["2 lines with results from an earlier batch"]
    assert (names(stage.results.answers), names(stage.results.errors)) == (["3", "0"], ["2", "1"])
    assert stage.is_done
    assert [path.name for path in stage.run.root.iterdir()] == ["state.json"]


@pytest.mark.long
def test_a_batch_that_was_cancelled_when_all_had_a_result_needs_no_other(service: Service, stage: Stage) -> None:
    def cancelled(batch_id: str) -> None:
        service.cancel(batch_id, [completed(number, name) for number, name in enumerate(NAMES)])

    with pytest.raises(ServiceError, match="Results of 4 lines are kept"):
        Hand(service, cancelled).run(stage)
    before = service.run("batch", "list").stdout
    Hand(service, pytest.fail).run(stage)
    assert service.run("batch", "list").stdout == before
    assert names(stage.results.answers) == list(NAMES)
    assert not stage.results.errors.exists()


def write(path: Path, custom_ids: Sequence[str]) -> ResultFiles:
    path.write_text("".join(json.dumps({"custom_id": custom_id, "from": path.name}) + "\n" for custom_id in custom_ids))
    return ResultFiles(answers=path)


def test_a_line_that_two_batches_answered_has_one_result(tmp_path: Path, stage: Stage) -> None:
    kept, latest = write(tmp_path / "kept", ["3", "2"]), write(tmp_path / "latest", ["3", "0"])
    assert merge(stage.lines, [kept, latest], kept) == 3
    assert [json.loads(line)["from"] for line in kept.answers.read_text().splitlines()] == ["kept", "latest", "kept"]


@pytest.mark.parametrize("custom_ids", [["0", "3"], ["3", "nobody"]])
def test_results_in_another_order_are_not_lost_in_silence(tmp_path: Path, stage: Stage, custom_ids: list[str]) -> None:
    latest = write(tmp_path / "latest", custom_ids)
    with pytest.raises(ServiceError, match="out of order, or belongs to no line"):
        merge(stage.lines, [latest], stage.kept)
    assert not stage.kept.paths
