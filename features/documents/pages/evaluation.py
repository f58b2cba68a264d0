"""`/extractions/{id}/evaluation`: the accuracy of an extraction, field by field, and the quality of its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import Query, Request, Response
from pydantic import BeforeValidator

from api.dashboard import formats
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import Viewer, ViewerDep
from api.fields import ObjectId, StrictModel
from api.services import Services, ServicesDep
from api.spending import AT_ONCE
from features.documents import lifecycle
from features.documents.extraction.evaluation.evaluate import Evaluation, Measures
from features.documents.extraction.report import curves
from features.documents.http.evaluations import evaluated
from features.documents.tables import Extraction
from jobs import files
from jobs.database import transaction
from jobs.errors import ConflictError, InputError
from jobs.files import Purpose
from jobs.tables import File

router = page_router()

_LOOKED_AT = 1000
_OFFERED = 50
_ENDS = (".jsonl", ".ndjson")


class EvaluationQuery(StrictModel):
    gold: Annotated[ObjectId | None, BeforeValidator(lambda given: given or None)] = None
    """The id of a file; without it people's decisions are the gold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """The plots, in the units of their SVG."""

    width: int
    height: int
    risk: curves.RiskCurve
    one_percent: float
    """Vertical position of 1 % wrong."""
    dots: Sequence[curves.Dot]

    @classmethod
    def of(cls, evaluation: Evaluation) -> _Drawn:
        risk = curves.risk_curve(evaluation.risk)
        return cls(
            width=curves.WIDTH,
            height=curves.HEIGHT,
            risk=risk,
            one_percent=curves.HEIGHT * (1 - 0.01 / risk.highest),
            dots=curves.calibration_dots(evaluation.bins),
        )


@router.get("/extractions/{extraction_id}/evaluation", name="showEvaluation")
async def show(
    extraction_id: str,
    request: Request,
    *,
    viewer: ViewerDep,
    services: ServicesDep,
    query: Annotated[EvaluationQuery, Query()],
) -> Response:
    tenant_id = viewer.caller.owner().id
    async with services.session_slots:
        extraction, offered = await run_sync(_find, services, tenant_id, extraction_id)
    try:
        with services.in_flight.hold(tenant_id, "estimates", allowed=AT_ONCE):
            evaluation = await evaluated(services, tenant_id, extraction_id, query.gold)
    except InputError as error:
        status = HTTPStatus.OK if isinstance(error, ConflictError) else error.status
        return _page(request, viewer, extraction, offered, query, problem=error.message, status=status)
    return _page(request, viewer, extraction, offered, query, found=evaluation)


def _page(
    request: Request,
    viewer: Viewer,
    extraction: Extraction,
    offered: Sequence[File],
    query: EvaluationQuery,
    *,
    found: Evaluation | None = None,
    problem: str = "",
    status: int = HTTPStatus.OK,
) -> Response:
    return render(
        request,
        viewer,
        "evaluation.html",
        status=status,
        extraction=extraction,
        offered=offered,
        asked=query.gold,
        problem=problem,
        found=found,
        rows=[] if found is None else _rows(found),
        drawn=None if found is None else _Drawn.of(found),
    )


def _rows(evaluation: Evaluation) -> list[tuple[str, dict[str, str]]]:
    return [
        _row("all fields", evaluation.overall),
        *(_row(name, measures) for name, measures in evaluation.fields.items()),
    ]


def _row(name: str, measures: Measures) -> tuple[str, dict[str, str]]:
    rates = measures.rates
    shares = {
        "Precision": rates.precision,
        "Recall": rates.recall,
        "F1": rates.f1,
        "ANLS*": measures.anls,
        "Nulls right": measures.null_right,
        "Found in text": measures.grounded,
        "Unseen at 99 % right": measures.automated,
    }
    written = {label: formats.percent(share) for label, share in shares.items()}
    return name, {"Gold values": formats.exact(rates.right + rates.missed), **written}


def _find(services: Services, tenant_id: str, extraction_id: str) -> tuple[Extraction, list[File]]:
    """Return an extraction, and the files whose names suggest gold lines, those named gold first."""
    with transaction(services.sessions) as session:
        extraction = lifecycle.EXTRACTIONS.get(session, tenant_id, extraction_id)
        newest = files.list_files(session, tenant_id, limit=_LOOKED_AT, purpose=Purpose.USER_DATA).data
        lines = [file for file in newest if file.filename.endswith(_ENDS)]
        return extraction, sorted(lines, key=lambda file: "gold" not in file.filename.lower())[:_OFFERED]
