"""Tests of work that a service finds again, of batches that end before their lines do, and of what stays stored."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from openai import OpenAI

from cli.client import make_client
from cli.disk.input_scan import named_lines, scan_input
from cli.service.service import Service as OpenService
from cli.submitting.command_folder import CommandFolder
from cli.submitting.ordered_results import OrderedResults
from cli.submitting.results import ResultFiles, write_results
from cli.submitting.stored import delete_stored, ids_stored
from cli.submitting.submission import Lines, Submission
from cli.submitting.uploading import upload_input, upload_stream
from jobs.errors import InputError, ServiceError
from tests.cli.service import LINE, Service, completed, failed

NAMES = ("3", "0", "2", "1")
"""In no order: users' lines have arbitrary names."""


@dataclass(slots=True)
class Hand:
    """Acts once in place of workers for each new batch of a command."""

    service: Service
    open: OpenService
    folder: CommandFolder
    path: Path
    said: list[str] = field(default_factory=list)

    def submission(self, work: Callable[[str], None], *, window: str = "24h") -> Submission:
        scan = scan_input(self.path)
        lines = Lines(
            name="in",
            sha256=scan.sha256,
            endpoint=scan.endpoint,
            upload=lambda service, name: upload_input(service, self.path, name=name),
        )
        seen = {batch["id"] for batch in self.service.batches() if batch["status"] not in ("validating", "in_progress")}

        def look() -> None:
            for batch in self.service.batches():
                if batch["id"] not in seen and batch["model"] in (None, "tiny"):
                    seen.add(batch["id"])
                    work(batch["id"])

        opened = replace(self.open, on_poll=look, window=window)
        return Submission(service=opened, folder=self.folder, lines=lines, say=self.said.append)

    def write(self, batches: Sequence[Any]) -> ResultFiles:
        results = ResultFiles(answers=self.path.with_name("out.jsonl"))
        write_results(self.open.client, batches, results, custom_ids=(name for name, _ in named_lines(self.path)))
        return results


@pytest.fixture
def hand(service: Service, tmp_path: Path) -> Iterator[Hand]:
    """Return a command with four lines, the last of which has no line feed at its end."""
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps({**LINE, "custom_id": name}) for name in NAMES))
    with make_client(service.base_url, service.api_key) as client:
        opened = OpenService(client=client, model="tiny", window="24h", is_here=False)
        folder = CommandFolder.below(tmp_path, tmp_path.name)
        with folder.held():
            yield Hand(service, opened, folder, path)


def names(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


def all_done(service: Service) -> Callable[[str], None]:
    return lambda batch_id: service.work_off(batch_id, [completed(number, name) for number, name in enumerate(NAMES)])


@pytest.mark.long
def test_lines_that_did_not_run_alone_run_again_and_all_results_are_in_their_order(hand: Hand) -> None:
    service = hand.service

    def cancelled(batch_id: str) -> None:
        service.cancel(batch_id, [completed(1, "0"), failed(2, "2", code="invalid_value", batch_id=batch_id)])

    def cancelled_again(batch_id: str) -> None:
        service.cancel(batch_id, [completed(0, "3")])

    def worked_off(batch_id: str) -> None:
        service.work_off(batch_id, [failed(0, "1", code="engine_failure", batch_id=batch_id)])

    with pytest.raises(ServiceError, match=r"ended as cancelled\. Answers of 1 line are kept; the same command"):
        hand.submission(cancelled).run()
    with pytest.raises(ServiceError, match=r"ended as cancelled\. Answers of 1 line are kept; the same command"):
        hand.submission(cancelled_again).run()
    batches = hand.submission(worked_off).run()
    assert len(batches) == 3
    assert batches[1].retry_of == batches[0].id
    results = hand.write(batches)
    assert (names(results.answers), names(results.errors)) == (["3", "0"], ["2", "1"])
    ids = ids_stored(hand.open.client, hand.folder.key, batches)
    assert delete_stored(hand.open.client, ids, say=pytest.fail) == []
    remaining = {one["id"] for one in service.batches()}
    assert remaining.isdisjoint(ids)
    assert not [file for file in hand.open.client.files.list() if file.id in ids]
    assert delete_stored(hand.open.client, ids, say=pytest.fail) == [], "an earlier start may have deleted them"


@pytest.mark.long
def test_a_batch_that_was_cancelled_when_all_had_a_result_needs_no_other(hand: Hand) -> None:
    def cancelled(batch_id: str) -> None:
        hand.service.cancel(batch_id, [completed(number, name) for number, name in enumerate(NAMES)])

    with pytest.raises(ServiceError, match="Answers of 4 lines are kept"):
        hand.submission(cancelled).run()
    batches = hand.submission(pytest.fail).run()
    assert len(batches) == 1
    results = hand.write(batches)
    assert names(results.answers) == list(NAMES)
    assert not results.errors.exists()


@pytest.mark.long
def test_a_batch_that_was_cancelled_before_it_was_validated_runs_again_as_a_whole(hand: Hand) -> None:
    with pytest.raises(ServiceError, match=r"ended as cancelled\.\n?$"):
        hand.submission(_cancel_at_once(hand.service)).run()
    batches = hand.submission(all_done(hand.service)).run()
    results = hand.write(batches)
    assert (names(results.answers), results.errors.exists()) == (list(NAMES), False)


def _cancel_at_once(service: Service) -> Callable[[str], None]:
    def cancel(batch_id: str) -> None:
        service.run("batch", "cancel", batch_id)
        service.write_files(batch_id)

    return cancel


@pytest.mark.long
def test_lines_that_fail_validation_leave_nothing_also_where_a_cancel_came_first(hand: Hand) -> None:
    hand.path.write_text(json.dumps({**LINE, "custom_id": "a", "body": {**LINE["body"], "model": "nobody"}}))
    before = len(list(hand.open.client.files.list()))
    with pytest.raises(ServiceError, match="ended as cancelled"):
        hand.submission(_cancel_at_once(hand.service)).run()
    with pytest.raises(ServiceError, match=r"ended as failed\.\n.*nobody"):
        hand.submission(hand.service.validate).run()
    assert len(list(hand.open.client.files.list())) == before
    assert not hand.folder.is_begun


def test_the_answers_of_a_batch_that_failed_later_are_kept(hand: Hand) -> None:
    counts = SimpleNamespace(completed=2, failed=0, total=4)
    batch = SimpleNamespace(
        id="batch_1", status="validating", request_counts=None, errors=None, completion_window="24h"
    )
    ended = SimpleNamespace(id="batch_1", status="failed", request_counts=counts, errors=None)
    submission = replace(hand.submission(pytest.fail), service=replace(hand.open, client=cast(OpenAI, None)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cli.submitting.submission.watch_batch", lambda *_, **__: ended)
        with pytest.raises(ServiceError, match=r"ended as failed\. Answers of 2 lines are kept"):
            submission._ended(batch, before=[])
    assert submission._ended(ended, before=[]) is ended, "a later start submits the rest"


@pytest.mark.long
def test_another_window_of_a_later_start_holds_for_the_batch_of_the_first(hand: Hand) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hand.submission(interrupted).run()
    assert "The same command waits for it again" in hand.said[-1]
    (batch,) = hand.submission(all_done(hand.service), window="7d").run()
    assert hand.said[-1] == f"resuming {batch.id}"
    assert batch.completion_window == "7d"


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_service_on_this_machine_gets_the_unpacked_input_in_one_stream(hand: Hand, *, is_packed: bool) -> None:
    content = hand.path.read_bytes()
    if is_packed:
        hand.path.write_bytes(gzip.compress(content))
    file = upload_input(replace(hand.open, is_here=True), hand.path, name="in.k.jsonl")
    assert (file.filename, hand.open.client.files.content(file.id).content) == ("in.k.jsonl", content)


def test_an_error_of_streamed_lines_is_raised_as_it_is_and_nothing_is_stored(hand: Hand) -> None:
    def lines() -> Iterator[bytes]:
        yield b"first\n"
        raise InputError("the second line is bad")

    before = len(list(hand.open.client.files.list()))
    with pytest.raises(InputError, match="the second line is bad"):
        upload_stream(hand.open, lines(), name="in.k.jsonl")
    assert len(list(hand.open.client.files.list())) == before


@pytest.mark.parametrize("custom_ids", [["0", "3"], ["3", "nobody"]])
def test_results_in_another_order_are_not_lost_in_silence(custom_ids: list[str]) -> None:
    results = OrderedResults([json.dumps({"custom_id": name}).encode() for name in custom_ids], name="out")
    for name in NAMES:
        results.pop(name)
    with pytest.raises(ServiceError, match="out of order, or belongs to no line"):
        results.require_end()
