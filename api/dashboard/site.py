"""The pages, and the files that they are styled and moved with."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from features import parts

_STATIC = Path(__file__).parent / "static"
_ASKED_AGAIN = "no-cache"  # answered with 304 where nothing has changed: an upgrade is seen at once


class _Static(StaticFiles):
    """Files of this folder."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = _ASKED_AGAIN
        answer.headers["x-content-type-options"] = "nosniff"
        return answer


def install_dashboard(app: FastAPI) -> None:
    """Add the pages to the application; `app.state.open_pages` must keep looking while it serves."""
    for router in parts("pages"):
        app.router.include_router(router)  # past the table of scopes: a page asks who looks at it
    app.mount("/static", _Static(directory=_STATIC), name="static")
