"""Tests that a released chunk continues where it stopped, after its previous results and tokens."""

from __future__ import annotations

from engine.process.messages import FinishReason, TokenDelta
from tests.workers.chunks.builders import BILLED, CHUNKS, RESULTS, Bench, FakeHost, MakeLine, SubmitLines
from workers.drain import Drain

KEPT = "SELECT line_no, token_ids FROM checkpoint ORDER BY line_no"


def test_lines_that_have_a_result_are_not_run_again(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(number) for number in range(4)])
    bench.start(bench.claim())
    host.wait_for(4)
    host.answer(3)
    bench.wait_until("SELECT count(*)::int FROM result", [(3,)])
    drain.begin(0)
    bench.join()
    assert bench.rows("SELECT state, losses FROM chunk") == [("ready", 0)], "given back, which is no loss"
    assert len(host.aborted) == 1

    bench.change_parts(drain=Drain())
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert len(host.prompts) == 5, "four the first time, the missing one the second time"
    assert bench.rows(BILLED) == [(4, 8)]


def test_a_drained_line_goes_on_after_the_tokens_it_had(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0, stop="never"), line(1, n=2), line(2, logprobs=True)])
    bench.start(bench.claim())
    host.wait_for(3)
    host.generate(50, 51, 52)
    drain.begin(0)
    bench.join()
    assert bench.rows(KEPT) == [(0, [50, 51, 52])], "several choices and log-probabilities are computed again"

    bench.change_parts(drain=Drain())
    bench.start(bench.claim())
    host.wait_for(6)
    request, owner = host.waiting[3]
    assert request.output_token_ids == [50, 51, 52]
    owner.receive(TokenDelta(request_id=3, token_ids=[53]))
    owner.start_over()  # the engine died: the request runs again from where it was submitted
    owner.receive(TokenDelta(request_id=3, token_ids=[54], finish_reason=FinishReason.LENGTH))
    bench.wait_until("SELECT line_no, output_tokens FROM result", [(0, 4)])
    for request_id in (4, 5):
        host.waiting[request_id][1].receive(
            TokenDelta(request_id=request_id, finish_reason=FinishReason.ERROR, error="x")
        )
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 2)]


def test_a_second_drain_keeps_the_longer_output(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0)])
    for expected in ([50], [50, 50]):
        drain = Drain()
        bench.change_parts(drain=drain)
        bench.start(bench.claim())
        host.wait_for(len(expected))
        host.generate(50)
        drain.begin(0)
        bench.join()
        assert bench.rows(KEPT) == [(0, expected)]


def test_output_of_another_model_is_not_gone_on_with(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0)])
    bench.start(bench.claim())
    host.wait_for(1)
    host.generate(50)
    drain.begin(0)
    bench.join()
    bench.change_parts(drain=Drain(), model_fingerprint="other weights")
    bench.start(bench.claim())
    host.wait_for(2)
    assert host.waiting[1][0].output_token_ids == ()
    host.answer(1)
    bench.join()
    assert bench.rows("SELECT output_tokens FROM result") == [(2,)]


def test_a_resumed_line_that_the_engine_refuses_runs_once_more_from_its_prompt(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1)])
    bench.start(bench.claim())
    host.wait_for(2)
    host.generate(50)
    drain.begin(0)
    bench.join()
    bench.change_parts(drain=Drain())
    bench.start(bench.claim())
    host.wait_for(4)
    host.answer(2, error="output_token_ids has 50; ids run from 0 to 9.")
    host.wait_for(6)
    assert [request.output_token_ids for request, _ in host.waiting.values()] == [(), ()]
    host.answer(1)
    host.answer(1, error="it does not fit")
    bench.join()
    assert [status for _, status in bench.rows(RESULTS)] == [200, None]
