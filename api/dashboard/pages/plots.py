"""`/plots`: the points of the plots, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query, Response
from fastapi.responses import JSONResponse

from api.dashboard.rendering import PAGE_HEADERS
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.fields import StrictModel
from jobs.accounts.money import PICOS_A_UNIT
from jobs.overview import plots
from jobs.overview.plots import Plot, Range, Series

router = page_router()

_OF_ALL = (Series.QUEUED_LINES, Series.RUNNING_REQUESTS, Series.CACHE_USE)
"""Series over all tenants, which only operators see."""


class PlotQuery(StrictModel):
    range: Range = Range.HOUR


@router.get("/plots", name="readPlots")
def read(session: ReadingDep, *, viewer: ViewerDep, query: Annotated[PlotQuery, Query()]) -> Response:
    """Return every plot that the viewer may see, over the same range."""

    def one(series: Series) -> Plot:
        return plots.read(session, series, query.range, tenant_id=viewer.tenant_id)

    tokens = _added(one(Series.INPUT_TOKENS), one(Series.OUTPUT_TOKENS))
    drawings = {
        "tokens": _shown(tokens, divided_by=tokens.drawn_seconds),
        "cost": _shown(one(Series.COST), divided_by=PICOS_A_UNIT),
    }
    if viewer.is_operator:
        drawings |= {series.value: _shown(one(series)) for series in _OF_ALL}
    return JSONResponse(drawings, headers=PAGE_HEADERS)


def _added(first: Plot, second: Plot) -> Plot:
    def total(label: str) -> Sequence[float]:
        nothing = [0.0] * len(first.at)
        pairs = zip(first.lines.get(label, nothing), second.lines.get(label, nothing), strict=True)
        return [(one or 0.0) + (other or 0.0) for one, other in pairs]

    labels = sorted({*first.lines, *second.lines})
    return Plot(drawn_seconds=first.drawn_seconds, at=first.at, lines={label: total(label) for label in labels})


def _shown(plot: Plot, *, divided_by: float = 1) -> dict[str, Any]:
    lines = {
        label: [None if value is None else value / divided_by for value in values]
        for label, values in plot.lines.items()
    }
    return {"at": plot.at, "lines": lines}
