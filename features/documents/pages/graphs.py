"""The graph of an extraction: its stages, those to come, and the index that it asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from api.dashboard import formats
from api.dashboard.flow_view import FlowView, NodeView, SourceView, ahead, flow_view
from features.documents.extraction.course.job import Passes
from features.documents.stages import STAGES, DocumentStage, may_ask_again, stages_ahead
from features.documents.tables import Extraction, ExtractionNode
from flows.ends import FlowEnd
from flows.parts import FlowParts
from flows.tables import FlowNode
from jobs.forecasts.outlooks import Outlook

_ROUND = (DocumentStage.ASK_AGAIN, DocumentStage.GROUND_AGAIN)
"""Stages that have something to do only if values are doubtful."""


def graph_of(
    extraction: Extraction,
    parts: FlowParts[ExtractionNode],
    *,
    outlooks: Mapping[str, Outlook],
    end: FlowEnd,
    currency: str,
) -> FlowView:
    """Return the graph of an extraction; `outlooks` are those of its open batches."""
    return flow_view(
        extraction,
        parts,
        _nodes_ahead(_passes(extraction), parts.begun),
        outlooks=outlooks,
        end=end,
        currency=currency,
        expires_at=extraction.expires_at,
        sources=_sources(extraction),
    )


def _nodes_ahead(passes: Passes, begun: Sequence[FlowNode]) -> list[NodeView]:
    stages = stages_ahead(passes, begun)
    num_begun = Counter(node.name for node in begun)
    is_round_open = num_begun[DocumentStage.ASK_AGAIN] > num_begun[DocumentStage.GROUND_AGAIN]
    first_round = [_ahead(stage, is_certain=False) for stage in stages if stage in _ROUND]
    this_round = [_ahead(DocumentStage.GROUND_AGAIN, is_certain=True)] if is_round_open else first_round
    further = [_ahead(stage, is_certain=False) for stage in _ROUND] if may_ask_again(begun) else []
    others = [_ahead(stage, is_certain=True) for stage in stages if stage not in _ROUND]
    num_before = sum(STAGES.index(stage) < STAGES.index(_ROUND[0]) for stage in stages)
    return [*others[:num_before], *this_round, *further, *others[num_before:]]


def _ahead(stage: DocumentStage, *, is_certain: bool) -> NodeView:
    return ahead(formats.state_name(stage), is_certain=is_certain)


def _passes(extraction: Extraction) -> Passes:
    """Return its passes from the stored plan, which is not parsed: one of another release must not fail."""
    stored = extraction.plan.get("passes") or {}
    return Passes(again=extraction.again, cover=bool(stored.get("cover", False)))


def _sources(extraction: Extraction) -> list[SourceView]:
    corpus = extraction.plan.get("corpus") or {}
    if not corpus:
        return []
    index_id = str(corpus["index_id"])
    return [SourceView(what="index", name=str(corpus.get("name") or index_id), path=f"/indexes/{index_id}")]
