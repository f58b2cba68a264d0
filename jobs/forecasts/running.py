"""The live workers of a model: what each can run, and how fast it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from sqlalchemy import text, update
from sqlalchemy.orm import Session

from jobs.chunks import fleet
from jobs.engines import able
from jobs.engines.engine import ServingEngine
from jobs.forecasts.rates import Rate
from jobs.forecasts.speeds import WorkerCount, as_workers, measure
from jobs.lines.needs import Need
from jobs.tables import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A live worker: what it can run, and how fast."""

    engine: ServingEngine
    tokens_per_second: float | None
    is_claiming: bool
    """Whether it is neither drained nor out of its own accord."""

    @classmethod
    def of(cls, worker: Worker) -> Self:
        return cls(
            engine=fleet.engine_of(worker),
            tokens_per_second=(worker.speed or {}).get("tokens_per_second"),
            is_claiming=worker.draining_at is None and fleet.out_reason_of(worker) is None,
        )


def measured(session: Session, workers: Sequence[Worker], *, is_saturated: bool) -> list[Running]:
    """Measure the workers of a model, and store their speeds."""
    now = float(session.execute(_NOW).scalar_one())
    running = []
    for worker in workers:
        num_running = sum(int(lines) for lines, _ in worker.running_lines.values())
        seen = WorkerCount(id=worker.id, num_tokens=worker.num_tokens, running_lines=num_running, before=worker.speed)
        speed = measure(seen, now=now, is_saturated=is_saturated)
        session.execute(update(Worker).where(Worker.id == worker.id).values(speed=speed.state))
        running.append(replace(Running.of(worker), tokens_per_second=speed.tokens_per_second))
    return running


def worth(workers: Sequence[Running], rate: Rate) -> float:
    return as_workers([worker.tokens_per_second for worker in workers], average=rate.tokens_per_second)


def able_ones(row: Any, workers: Sequence[Running]) -> list[Running]:
    """Return the workers that may run an open batch: all its lines, or at least some where none may run all."""
    some = [worker for worker in workers if able.may_answer_batch(row, worker.engine)]
    return [worker for worker in some if Need(row.needs) in worker.engine.meets] or some


_NOW = text("SELECT extract(epoch FROM clock_timestamp())")
