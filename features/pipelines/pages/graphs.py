"""The graph of a run: the steps that have begun, and those of its definition that have not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy.orm import Session

from api.dashboard.flow_view import FlowView, SourceView, ahead, batch_source, flow_view
from features.pipelines.tables import Pipeline, Run, RunStep
from flows.ends import FlowEnd
from flows.parts import FlowParts
from jobs.batches import lifecycle as batches
from jobs.forecasts.outlooks import Outlook


def graph_of(
    session: Session,
    run: Run,
    parts: FlowParts[RunStep],
    pipeline: Pipeline,
    *,
    outlooks: Mapping[str, Outlook],
    end: FlowEnd,
    currency: str,
) -> FlowView:
    """Return the graph of a run; `outlooks` are those of its open batches."""
    # Read as stored: a definition of another release must not fail.
    steps = (run.definition or pipeline.definition)["steps"]
    sources = _sources(session, run.tenant_id, steps)
    nodes_ahead = [ahead(step["name"], sources=sources.get(step["name"], ())) for step in steps[len(parts.begun) :]]
    return flow_view(
        run,
        parts,
        nodes_ahead,
        outlooks=outlooks,
        end=end,
        currency=currency,
        name_of=str,
        sources_of=lambda node: sources.get(node.name, ()),
    )


def _sources(session: Session, tenant_id: str, steps: Collection[Mapping[str, Any]]) -> dict[str, list[SourceView]]:
    """Return the batches whose answers are the rows of steps, by the step's name."""
    ids = {step["name"]: step["source"]["batch"] for step in steps if step["source"].get("batch") is not None}
    kept = {batch.id: batch for batch in batches.find_batches(session, ids.values())} if ids else {}
    own = {batch_id: batch for batch_id, batch in kept.items() if batch.tenant_id == tenant_id}
    return {
        name: [
            batch_source(own[batch_id], what="rows")
            if batch_id in own
            else SourceView(what="rows", name=batch_id, path=None)
        ]
        for name, batch_id in ids.items()
    }
