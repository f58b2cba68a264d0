"""The pages, and the files that they are styled and moved with."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from api.dashboard import signing_in
from api.dashboard.pages import (
    batch,
    batches,
    documents,
    evaluation,
    extractions,
    health,
    indexes,
    models,
    overview,
    pipelines,
    plots,
    sessions,
    submit,
    tenants,
    usage,
)

_STATIC = Path(__file__).parent / "static"
_ASKED_AGAIN = "no-cache"  # answered with 304 where nothing has changed: an upgrade is seen at once
_READING = (overview, batches, batch, models, usage, health, plots, sessions)
_WORKING = (submit, pipelines, extractions, evaluation, documents, indexes, tenants)


class _Static(StaticFiles):
    """Files of this folder."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = _ASKED_AGAIN
        answer.headers["x-content-type-options"] = "nosniff"
        return answer


def install_dashboard(app: FastAPI) -> None:
    """Add the pages to the application; `app.state.open_pages` must keep looking while it serves."""
    for module in (signing_in, *_READING, *_WORKING):
        app.router.include_router(module.router)  # past the table of scopes: a page asks who looks at it
    app.mount("/static", _Static(directory=_STATIC), name="static")
