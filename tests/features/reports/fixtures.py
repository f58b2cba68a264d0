"""Runs of a pipeline on many days, with the statistics of their answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from features.pipelines.tables import Pipeline, Run, RunStep
from jobs.ids import new_id
from jobs.tables import Batch, File

DEFINITION = {"steps": [{"name": "fields", "prompt": "{{ text }}"}]}


def stored(*, rows: int = 1000, failed: int = 0, nulls: int = 0, mean_log: float = 3.0) -> dict[str, Any]:
    """Return the statistics of a step whose answers have one column of texts, as a run keeps them."""
    values = rows - failed - nulls
    lengths = {"values": values, "log_sum": mean_log * values, "log_squares": (mean_log**2 + 0.25) * values}
    return {
        "rows": rows,
        "failed": failed,
        "codes": {"length": failed} if failed else {},
        "failed_rows": [f"row-{number:09d}" for number in range(1, min(failed, 20) + 1)],
        "fields": {"vendor": {"values": values, "nulls": nulls, "lengths": lengths}},
    }


@dataclass
class Days:
    """A pipeline whose runs are inserted as if they had run."""

    session: Session
    pipeline: Pipeline

    def run(
        self,
        at: datetime,
        *,
        state: str = "succeeded",
        cost: int = 0,
        minutes: int = 10,
        statistics: dict[str, Any] | None = None,
        failed_lines: int = 0,
        **columns: Any,
    ) -> Run:
        """Insert a run of one step, with a batch that used `cost` tokens of input, each for 1,000 pico-units."""
        is_open = state in ("queued", "running")
        values: dict[str, Any] = {
            "id": new_id("run"),
            "tenant_id": self.pipeline.tenant_id,
            "pipeline_id": self.pipeline.id,
            "kind": "cron",
            "created_at": at,
            "started_at": at,
            "scheduled_for": at,
            "interval_start": at,
            "interval_end": at,
            "definition": DEFINITION,
        } | columns
        run = Run(**values)
        run.state, run.ended_at = state, None if is_open else at + timedelta(minutes=minutes)
        self.session.add(run)
        self.session.flush()
        batch = self._batch(run_id=run.id, input_tokens=cost, cost_picos=1000 * cost, num_failed=failed_lines)
        answers = stored() if statistics is None else statistics
        step = RunStep(flow_id=run.id, number=0, name="fields", num_lines=answers["rows"], batch_id=batch.id)
        step.num_rows = answers["rows"]
        if not is_open:
            step.done_at, step.num_failed, step.statistics = run.ended_at, answers["failed"], answers
        self.session.add(step)
        self.session.commit()
        return run

    def batch_of(self, run: Run) -> str:
        """Return the id of the batch of a run's step."""
        step = self.session.get_one(RunStep, (run.id, 0))
        return str(step.batch_id)

    def _file(self) -> str:
        tenant_id, file_id = self.pipeline.tenant_id, new_id("file")
        file = File(id=file_id, tenant_id=tenant_id, purpose="batch", filename="lines.jsonl", size_bytes=1)
        file.object_key = f"{tenant_id}/{file_id}"
        self.session.add(file)
        self.session.flush()
        return file_id

    def _batch(self, **columns: Any) -> Batch:
        tenant_id, file_id = self.pipeline.tenant_id, self._file()
        if columns["num_failed"]:
            columns["error_file_id"] = self._file()
        values: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "state": "completed"}
        values |= {"expires_at": datetime.now(UTC), "fingerprint": new_id("fp"), "input_file_id": file_id}
        batch = Batch(id=new_id("batch"), tenant_id=tenant_id, **values, **columns)
        self.session.add(batch)
        self.session.flush()
        return batch

    def quiet(self, before: datetime, *, nights: int = 7, **columns: Any) -> None:
        """Insert the runs of the nights before a time, which differ a little."""
        for night in range(1, nights + 1):
            self.run(before - timedelta(days=night), statistics=stored(nulls=20 + night), **columns)


@pytest.fixture
def days(session: Session, pipeline: Pipeline) -> Days:
    return Days(session, pipeline)
