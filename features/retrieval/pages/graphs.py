"""The graph of an index: its stages, and those to come."""

from __future__ import annotations

from collections.abc import Mapping

from api.dashboard import formats
from api.dashboard.flow_view import FlowView, ahead, flow_view
from features.retrieval.stages import IndexStage, stages_for
from features.retrieval.tables import IndexNode, PassageIndex
from flows.ends import FlowEnd
from flows.parts import FlowParts
from jobs.forecasts.outlooks import Outlook


def graph_of(
    index: PassageIndex, parts: FlowParts[IndexNode], *, outlooks: Mapping[str, Outlook], end: FlowEnd, currency: str
) -> FlowView:
    """Return the graph of an index; `outlooks` are those of its open batches."""
    left = stages_for(index)[len(parts.begun) :]
    nodes_ahead = [ahead(formats.state_name(stage), is_certain=stage is not IndexStage.EMBED_AGAIN) for stage in left]
    return flow_view(
        index, parts, nodes_ahead, outlooks=outlooks, end=end, currency=currency, expires_at=index.expires_at
    )
