"""What a worker tells of its engine."""

from __future__ import annotations

from engine.outputs import EngineStats
from workers.engine_metrics import engine_metrics


def test_joules_are_told_where_the_engine_knows_them() -> None:
    assert engine_metrics(EngineStats(num_joules_total=2.5))["energy_joules_total"] == 2.5
    assert engine_metrics(EngineStats(num_joules_total=0.0))["energy_joules_total"] == 0.0


def test_what_the_engine_cannot_tell_is_left_out() -> None:
    assert "energy_joules_total" not in engine_metrics(EngineStats(num_joules_total=None))
