"""`/submit`: submits a file as a batch, after showing its errors and its estimate.

The browser does all of it through `/v1/files`, `/v1/estimates` and `/v1/batches`.
"""

from __future__ import annotations

from fastapi import Request, Response

from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, ViewerDep
from jobs.accounts.limits import allowed_priorities
from jobs.lines.endpoints import ENDPOINTS
from jobs.served_models import offered_models
from jobs.states import Scope

router = page_router()

_WINDOWS = ("1h", "6h", "24h", "7d")


@router.get("/submit", name="showSubmit")
def show(request: Request, session: ReadingDep, *, viewer: ViewerDep) -> Response:
    viewer.caller.require(Scope.SUBMIT)
    tenant = viewer.caller.owner()
    return render(
        request,
        viewer,
        "submit.html",
        models=[model.name for model in offered_models(session)],
        endpoints=list(ENDPOINTS),
        classes=[priority.value for priority in allowed_priorities(tenant)],
        windows=_WINDOWS,
    )
