"""Renders pages: the templates, their filters, and the headers of every page."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from api.dashboard import formats
from api.dashboard.viewer import Viewer
from features import FEATURES
from features.feature import MenuEntry

PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_MENU = tuple(entry for feature in FEATURES for entry in feature.menu)


def render(
    request: Request, viewer: Viewer | None, template: str, *, status: int = HTTPStatus.OK, **values: Any
) -> HTMLResponse:
    """Render a page; `values` are all variables of its template.

    `path` is that of the menu entry to mark as current, if it is another page's. The viewer is None before signing in.
    """
    variables = {"path": request.url.path, **values, "viewer": viewer, "pages": _pages_for(viewer)}
    content = _environment().get_template(template).render(variables)
    return HTMLResponse(content, status_code=status, headers=PAGE_HEADERS)


def _pages_for(viewer: Viewer | None) -> list[tuple[str, str]]:
    if viewer is None:
        return []
    return [(entry.path, entry.title) for entry in _MENU if _is_shown(entry, viewer)]


def _is_shown(entry: MenuEntry, viewer: Viewer) -> bool:
    if viewer.is_operator:
        return entry.for_operators
    return entry.for_tenants and (viewer.may_submit or not entry.needs_submit)


def _of_features() -> list[PackageLoader]:
    return [PackageLoader(feature.templates, "pages") for feature in FEATURES if feature.templates is not None]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("api.dashboard"), *_of_features()]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for written in (
        formats.number,
        formats.exact,
        formats.rate,
        formats.percent,
        formats.span,
        formats.ago,
        formats.until,
        formats.stamp,
        formats.short_stamp,
        formats.state_name,
        formats.model_name,
        formats.tone,
    ):
        environment.filters[written.__name__] = written
    environment.globals["share"] = formats.share
    environment.globals["NOTHING"] = formats.NOTHING
    return environment
