"""Convert the state between two measurements to JSON and back. Missing values mean unknown.

Pure: no SQL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from jobs.forecasts.looks import ModelState
from jobs.forecasts.rates import Rate
from jobs.forecasts.seen import History, Mark
from jobs.forecasts.track_record import Kind, Phase, TrackRecord
from jobs.states import Priority

_MEASURED = (
    *("evidence_seconds", "recent_seconds", "recent_tokens"),
    *("evidence_lines", "line_seconds", "ended_lines"),
)


def kept(state: ModelState, *, ledger_id: int) -> dict[str, Any]:
    """Return the columns of a model's `serving_rate`."""
    rate = state.rate
    return {
        "tokens_per_second": rate.tokens_per_second,
        "token_ratio": rate.ended_ratio,
        "is_saturated": rate.is_saturated,
        "counters": {
            "ledger_id": ledger_id,
            "begun_tokens": state.begun_tokens,
            "errors": [[phase, priority, list(own)] for (phase, priority), own in state.record.errors.items()],
            **{name: getattr(rate, name) for name in _MEASURED},
        },
    }


def state_of(row: Any) -> ModelState:
    """Return the state stored in a row of `serving_rate`."""
    counters: Mapping[str, Any] = row.counters
    measured = {name: float(counters.get(name, 0.0)) for name in _MEASURED}
    return ModelState(
        rate=Rate(
            tokens_per_second=row.tokens_per_second,
            ended_ratio=row.token_ratio,
            is_saturated=row.is_saturated,
            **measured,
        ),
        record=TrackRecord(
            errors={_kind_of(phase, priority): own for phase, priority, own in counters.get("errors", [])}
        ),
        begun_tokens=float(counters.get("begun_tokens", 0.0)),
    )


def history_as_json(history: History) -> str:
    return json.dumps(asdict(history))


def history_of(values: Mapping[str, Any]) -> History:
    """Return what a forecast's row stores about a batch."""
    marks = {int(part): None if mark is None else _mark_of(mark) for part, mark in values["marks"].items()}
    return History(**{**values, "marks": marks})


def _mark_of(values: Mapping[str, Any]) -> Mark:
    return Mark(made_at=values["made_at"], seconds=values["seconds"], kind=_kind_of(*values["kind"]))


def _kind_of(phase: str, priority: str | None) -> Kind:
    return Phase(phase), None if priority is None else Priority(priority)
