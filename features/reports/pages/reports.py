"""`/reports`: the last day of each pipeline; `/reports/{pipeline}`: one pipeline's day."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response

from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.fields import ObjectId
from api.services import ServicesDep
from api.spending import AT_ONCE
from features.pipelines import definitions
from features.reports.reading import read_report
from features.reports.schemas import ReportMeasure, ReportObject
from features.reports.texts import STATUS_WORDS, ShownMeasure, end_words, local_time, money, shown_measure

router = page_router()


async def _hold_listing(services: ServicesDep, viewer: ViewerDep) -> AsyncIterator[None]:
    """Count with the listings of the API, before a slot is waited for."""
    with services.in_flight.hold(viewer.caller.owner().id, "listings", allowed=AT_ONCE):
        yield


_ONE_LISTING = Depends(_hold_listing, scope="function")

_MOST = 20
"""Pipelines on a page: each report takes a few dozen short reads."""
_DAY = timedelta(days=1)


@router.get("/reports", name="showReports", dependencies=[_ONE_LISTING])
def show(
    request: Request,
    session: ReadingDep,
    *,
    viewer: ViewerDep,
    services: ServicesDep,
    after: Annotated[ObjectId | None, Query()] = None,
) -> Response:
    tenant_id = viewer.caller.owner().id
    page = definitions.list_pipelines(session, tenant_id, after=after, limit=_MOST)
    read = partial(read_report, session, tenant_id)
    reports = [ReportObject.of(read(each.id), currency=services.settings.currency) for each in page.data]
    return render(
        request,
        viewer,
        "reports.html",
        reports=reports,
        next_after=page.data[-1].id if page.has_more else None,
        num_drifts={one.pipeline_id: len(_drifted(one)) for one in reports},
        **_WORDS,
    )


@router.get("/reports/{pipeline_id}", name="showReport", dependencies=[_ONE_LISTING])
def show_one(
    pipeline_id: str,
    request: Request,
    session: ReadingDep,
    *,
    viewer: ViewerDep,
    services: ServicesDep,
    day: Annotated[date | None, Query()] = None,
) -> Response:
    values = read_report(session, viewer.caller.owner().id, pipeline_id, day)
    report = ReportObject.of(values, currency=services.settings.currency)
    return render(
        request,
        viewer,
        "report.html",
        path="/reports",
        report=report,
        local=partial(local_time, zone=report.time_zone),
        before=values.day - _DAY,
        after=values.day + _DAY,
        end=end_words(report.model_dump(), report.time_zone),
        next_end=None if report.next_run is None else end_words(report.next_run.model_dump(), report.time_zone),
        drifts=_shown(_drifted(report)),
        quiet=_shown([one for one in report.drift.measures if not one.drifted]),
        **_WORDS,
    )


_WORDS: dict[str, Any] = {"words": STATUS_WORDS, "money": money, "local_time": local_time}


def _drifted(report: ReportObject) -> Sequence[ReportMeasure]:
    return [one for one in report.drift.measures if one.drifted]


def _shown(measures: Sequence[ReportMeasure]) -> Sequence[ShownMeasure]:
    return [shown_measure(one.model_dump()) for one in measures]
