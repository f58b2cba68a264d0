"""Tests of the measurement of forecasts: every simulated batch ends, and its forecasts are compared with the end."""

from __future__ import annotations

from collections.abc import Sequence

from engine.scheduling.step_load import StepLoad
from lab import eta
from lab.simulation.cost import CoarseCost, LinearCost
from lab.traces import TraceRow


def rows(*, tenants: Sequence[str] = ("",), num_rows: int = 240) -> list[TraceRow]:
    return [
        TraceRow(
            arrival_seconds=0.5 * number,
            num_prompt_tokens=320,
            num_output_tokens=640 + 32 * (number % (4 * len(tenants))),
            tenant=tenants[number % len(tenants)],
        )
        for number in range(num_rows)
    ]


def test_every_measured_batch_ends_and_is_told_of_beside_others() -> None:
    load = eta.make_load(rows(), num_batches=3, lines=(900, 1200), seconds=300.0, speed_up=0.5)
    run = eta.forecast_all(load)
    assert all(batch.num_finished == len(batch.lines) for batch in load.batches)
    assert {batch.tenant.split()[0] for batch in load.batches} == {"measured", "beside"}
    assert 0 < run.busy <= 1
    answers = list(run.answers(0.5))
    assert len(answers) == 3
    assert all(0 <= one.earliest <= one.seconds <= one.latest for one in answers)
    assert eta.table(run).count("\n") == 2 + len(eta.STAGES)


def test_lines_of_a_batch_are_one_tenants_where_the_trace_has_tenants() -> None:
    load = eta.make_load(rows(tenants=("x", "y")), num_batches=3, lines=(900, 1200), seconds=60.0, speed_up=1.0)
    assert {batch.tenant for batch in load.beside} == {"beside x", "beside y"}
    lengths = {batch.tenant: {line.num_output_tokens for line in batch.lines} for batch in load.beside}
    assert lengths["beside x"].isdisjoint(lengths["beside y"])
    for batch in load.measured:
        assert any({line.num_output_tokens for line in batch.lines} <= own for own in lengths.values())


def test_the_same_seed_makes_the_same_load() -> None:
    first, second = (
        eta.make_load(rows(), num_batches=3, lines=(900, 1200), seconds=60.0, speed_up=1.0, seed=5) for _ in range(2)
    )
    assert [batch.lines for batch in first.batches] == [batch.lines for batch in second.batches]


def test_a_coarse_step_costs_what_the_steps_cost_that_it_stands_for() -> None:
    fine = LinearCost(
        per_step=1.0,
        per_token=2.0,
        per_seq=0.0,
        per_context_token=0.5,
        per_shared_token=0.25,
        per_attended=0.125,
        per_logit_row=3.0,
    )
    load = StepLoad(
        num_tokens=4, num_seqs=4, num_context_tokens=40, num_shared_tokens=8, num_attended=40, num_logit_rows=4
    )
    real = StepLoad(
        num_tokens=4, num_seqs=4, num_context_tokens=320, num_shared_tokens=64, num_attended=320, num_logit_rows=4
    )
    assert CoarseCost(cost=fine, stride=8).seconds(load) == 8 * fine.seconds(real)
