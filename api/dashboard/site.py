"""Adds the pages and their static files to the application."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from features import parts

_STATIC = Path(__file__).parent / "static"
_REVALIDATE = "no-cache"  # answered with 304 if nothing has changed, so that an upgrade takes effect at once


class _Static(StaticFiles):
    """Files of this folder."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = _REVALIDATE
        answer.headers["x-content-type-options"] = "nosniff"
        return answer


def install_dashboard(app: FastAPI) -> None:
    """Add the pages to the application; `app.state.open_pages` must keep looking while it serves."""
    for router in parts("pages"):
        app.router.include_router(router)  # bypasses the table of scopes: pages check their viewer
    app.mount("/static", _Static(directory=_STATIC), name="static")
