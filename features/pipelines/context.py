"""The values of a run that reading, rendering and writing need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from features.pipelines.spec import Definition, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run in progress."""

    run_id: str
    tenant_id: str
    pipeline_id: str
    pipeline: str
    """Its name."""
    kind: str
    scheduled_for: datetime
    interval_start: datetime
    interval_end: datetime
    zone: ZoneInfo
    """The time zone of its schedule; UTC without one."""
    definition: Definition

    def key(self, pattern: str, *, step: Step, number: int | None = None) -> str:
        """Fill the placeholders of a key; a pattern's wildcards stay."""
        local = self.scheduled_for.astimezone(self.zone)
        values = {
            "pipeline": self.pipeline,
            "step": step.name,
            "run": self.run_id,
            "date": f"{local:%Y-%m-%d}",
            "hour": f"{local:%H}",
            "n": "*" if number is None else f"{number:05d}",
        }
        for name, value in values.items():
            pattern = pattern.replace(f"{{{name}}}", value)
        return pattern

    def shown(self) -> Mapping[str, Any]:
        """Return the value of `run` in templates."""
        local = self.scheduled_for.astimezone(self.zone)
        return {
            "id": self.run_id,
            "kind": self.kind,
            "pipeline": self.pipeline,
            "date": f"{local:%Y-%m-%d}",
            "scheduled_for": local.isoformat(),
            "interval_start": self.interval_start.astimezone(self.zone).isoformat(),
            "interval_end": self.interval_end.astimezone(self.zone).isoformat(),
        }
