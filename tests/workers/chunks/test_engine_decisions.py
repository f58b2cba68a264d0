"""Tests of the engine's decisions about a batch's lines, as its owner reads them."""

from __future__ import annotations

from dataclasses import replace

from engine.process.messages import FinishReason, TokenDelta
from jobs.settings import Settings
from tests.workers.chunks.builders import Bench, FakeHost, MakeLine, SubmitLines

ENGINES = "SELECT kind, subject, num::int FROM decision WHERE kind <> 'claimed' AND kind <> 'validated' ORDER BY kind"


def end(host: FakeHost, *, preemptions: int = 0, swaps: int = 0, cached: int = 0) -> None:
    """Answer the request that has waited longest; the numbers grow from delta to delta, as the engine's do."""
    request_id = next(iter(host.waiting))
    _, owner = host.waiting.pop(request_id)
    first = TokenDelta(request_id=request_id, token_ids=[40], num_cached_tokens=cached)
    last = replace(
        first, token_ids=[41], num_preemptions=preemptions, num_swaps=swaps, finish_reason=FinishReason.LENGTH
    )
    owner.receive(first)
    owner.receive(last)


def test_what_the_engine_did_is_noted_with_flushes_and_once(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(number) for number in range(4)])
    settings = Settings(heartbeat_seconds=100, flush_seconds=0.01, lease_seconds=600, flush_results=1)
    bench.change_parts(settings=settings, monotonic=lambda: 1.0)  # no time passes
    claim = bench.claim()
    bench.start(claim)
    host.wait_for(4)
    end(host, preemptions=2, swaps=1, cached=4)
    bench.wait_until("SELECT count(*)::int FROM result", [(1,)])
    assert bench.rows(ENGINES) == [
        ("preempted", claim.worker_id, 2),
        ("prefix_found", claim.worker_id, 4),
        ("swapped", claim.worker_id, 1),
    ]
    end(host, preemptions=1)
    bench.wait_until("SELECT count(*)::int FROM result", [(2,)])
    assert bench.rows(ENGINES)[0][2] == 2, "noted a moment ago"
    end(host, cached=8)
    end(host)
    bench.join()
    assert [row[2] for row in bench.rows(ENGINES)] == [3, 12, 1]


def test_where_the_engine_did_nothing_of_the_kind_nothing_is_noted(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(number) for number in range(4)])
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(ENGINES) == []
