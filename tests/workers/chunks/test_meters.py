"""Tests that a worker's metrics of its chunks match what was stored."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from jobs.settings import Settings
from jobs.tables import Tenant
from tests.workers.chunks.builders import Bench, FakeHost, MakeLine, SubmitLines


def value(bench: Bench, name: str, **labels: str) -> float | None:
    return bench.services.meters.registry.get_sample_value(f"tokenmill_{name}", labels)


@pytest.mark.parametrize("tells_tenants", [False, True])
def test_results_tokens_and_costs_are_counted_as_they_are_billed(
    tells_tenants: bool, bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, tenant: Tenant
) -> None:
    with bench.maker.begin() as session:
        session.execute(text("UPDATE model SET input_price_picos = 150000, output_price_picos = 600000"))
    submit_valid([line(number) for number in range(4)])
    bench.change_parts(settings=Settings(metrics_tenants=tells_tenants))
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    ((tokens_in, tokens_out, cost),) = bench.rows(
        "SELECT sum(input_tokens)::int, sum(output_tokens)::int, (sum(cost_picos) / 1e12)::float8 FROM ledger"
    )
    whose = tenant.id if tells_tenants else "all"
    assert value(bench, "results_total", outcome="completed") == 4
    assert value(bench, "billed_tokens_total", tenant=whose, kind="input") == tokens_in > 0
    assert value(bench, "billed_tokens_total", tenant=whose, kind="output") == tokens_out > 0
    assert value(bench, "billed_cost_total", tenant=whose, currency="USD") == pytest.approx(cost)
    flushes = value(bench, "flush_seconds_count")
    assert flushes is not None
    assert flushes >= 1


def test_what_a_worker_could_not_store_is_not_counted(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0)])
    bench.start(bench.claim())
    host.wait_for(1)
    with bench.maker.begin() as session:
        session.execute(text("UPDATE chunk SET fence = fence + 1"))
    host.answer(1)
    bench.join()
    assert value(bench, "results_total", outcome="completed") is None
    assert value(bench, "flush_seconds_count") == 0
