"""Tests of lines ended by a broken row: unbilled, retried once elsewhere, then an error; and of workers put out."""

from __future__ import annotations

import orjson

from tests.workers.chunks.builders import BILLED, CHUNKS, RESULTS, Bench, FakeHost, MakeLine, SubmitLines
from workers.drain import Drain

KEPT = "SELECT line_no, token_ids FROM checkpoint ORDER BY line_no"


def give_back(bench: Bench, drain: Drain) -> None:
    """Let a worker that is out release its chunk, and another one take over."""
    drain.take_out("the engine gave 8 lines in a row no numbers")
    bench.join()
    bench.change_parts(drain=Drain())


def test_a_line_that_broke_goes_to_the_next_worker_which_knows_of_it(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1), line(2)])
    bench.start(bench.claim())
    host.wait_for(3)
    host.generate(50)
    host.waiting[1][1].set_aside()
    host.waiting[1][1].set_aside()
    host.waiting[0][1].set_aside()
    give_back(bench, drain)
    assert bench.rows("SELECT state, losses FROM chunk") == [("ready", 0)]
    assert bench.rows(KEPT) == [(0, []), (1, []), (2, [50])]

    bench.start(bench.claim())
    host.wait_for(6)
    found = {new.request_id: (owner.num_broken, list(new.output_token_ids)) for new, owner in host.waiting.values()}
    assert found == {3: (1, []), 4: (1, []), 5: (0, [50])}
    host.answer(3)
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 2)]
    assert [status for _, status in bench.rows(RESULTS)] == [200, 200, 200]


def test_a_line_that_broke_for_good_is_an_unbilled_error_and_the_others_are_answered(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1)])
    bench.start(bench.claim())
    host.wait_for(2)
    host.answer(1)
    host.generate(50)
    host.break_all()
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200), (1, None)]
    assert bench.rows(BILLED) == [(1, 2)]
    [(content,)] = bench.rows("SELECT line FROM result WHERE line_no = 1")
    assert orjson.loads(content)["error"]["code"] == "engine_failure"


def test_a_resumed_line_that_broke_for_good_runs_no_third_time(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0)])
    bench.start(bench.claim())
    host.wait_for(1)
    host.generate(50)
    drain.begin(0)
    bench.join()
    bench.change_parts(drain=Drain())
    bench.start(bench.claim())
    host.wait_for(2)
    host.break_all()
    bench.join()
    assert len(host.prompts) == 2
    assert bench.rows(RESULTS) == [(0, None)]
